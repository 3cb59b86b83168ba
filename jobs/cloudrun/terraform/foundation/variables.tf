variable "project" {
  description = "The project's id."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "project is the id of a project, such as my-project-1; this is \"${var.project}\"."
  }
}

variable "region" {
  description = "A region of Cloud Run that has L4s."
  type        = string
  default     = "europe-west1"
  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region is a region of Cloud Run that has L4s, such as europe-west1; this is \"${var.region}\"."
  }
}

variable "bucket_models" {
  description = "The bucket of weights. Empty: PROJECT-voxbatch-models."
  type        = string
  default     = ""
}

variable "hub_token" {
  description = "Make the secret voxbatch-hf-token, for the hub token of a gated or private model."
  type        = bool
  default     = false
}

variable "alert_email" {
  description = "The address that alerts are sent to."
  type        = string
  default     = ""
  validation {
    condition     = var.alert_email == "" || can(regex("^[^@ ]+@[^@ ]+$", var.alert_email))
    error_message = "alert_email is an address, such as ops@example.org; this is \"${var.alert_email}\"."
  }
}

variable "scan" {
  description = "Let Google look for vulnerabilities in every image that is pushed in the project; each costs 0.26 USD."
  type        = bool
  default     = false
}
