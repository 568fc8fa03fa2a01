"""Maps that native handlers fill and Python reads."""

from ftrace.core.maps import Array as Array
from ftrace.core.maps import Hash as Hash
from ftrace.core.maps import Histogram as Histogram
from ftrace.core.maps import per_task as per_task
