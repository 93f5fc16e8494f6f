"""`noetl_http`: paginated web services as DataFrames, with the address policy and the credentials of the http tool."""
