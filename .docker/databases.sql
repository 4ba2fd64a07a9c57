-- Beside the database of the runs, one for users and what they may do.
CREATE DATABASE mlflow_auth;
