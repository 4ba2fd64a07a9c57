"""The only package that knows MLflow."""
