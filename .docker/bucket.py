"""Create the bucket of the artifacts, if it is not there."""

import os

import boto3
from botocore.exceptions import ClientError

store = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
bucket = os.environ["BUCKET"]
try:
    store.head_bucket(Bucket=bucket)
except ClientError as error:
    if error.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
        raise
    store.create_bucket(Bucket=bucket)
    print(f"created the bucket {bucket}")
