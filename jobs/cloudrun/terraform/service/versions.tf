terraform {
  required_version = ">= 1.5" # that of Cloud Shell

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 7.31"
    }
  }

  backend "gcs" {} # deploy.sh names the bucket; Terraform ignores this where the folder is a module of another one
}
