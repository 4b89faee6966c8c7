"""Writers of finished evaluations: one artifact a file, values in, files out."""
