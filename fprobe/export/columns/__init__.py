"""Records as columns: from sub-buffers to Parquet files, without a Python object for each record."""
