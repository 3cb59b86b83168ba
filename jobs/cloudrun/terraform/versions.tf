terraform {
  required_version = ">= 1.9" # validation of a variable that reads other variables

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.50" # worker pools, and GPUs of jobs
    }
    google-beta = { # only for google_project_service_identity
      source  = "hashicorp/google-beta"
      version = ">= 6.50"
    }
    time = {
      source  = "hashicorp/time"
      version = ">= 0.9"
    }
  }
}
