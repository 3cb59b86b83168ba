terraform {
  required_version = ">= 1.5" # that of Cloud Shell

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 7.31" # a disk of a job
    }
    google-beta = { # only for google_project_service_identity
      source  = "hashicorp/google-beta"
      version = "~> 7.31"
    }
    time = {
      source  = "hashicorp/time"
      version = "~> 0.9"
    }
  }

  backend "gcs" {} # deploy.sh names the bucket; Terraform ignores this where the folder is a module of another one
}
