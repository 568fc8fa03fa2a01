"""Events, tracers, triggers, histograms, and the files of tracefs."""
