"""Files as rows or as one text: JSON, CSV, parquet, folders of text, PDF, the hub."""
