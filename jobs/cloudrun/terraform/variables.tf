# The settings of deploy.sh, with the same defaults.

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

variable "image" {
  description = "The container by its digest. Empty: only what is needed before the image can be built."
  type        = string
  default     = ""
  validation {
    condition     = var.image == "" || can(regex("^[^@ ]+@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image is NAME@sha256:DIGEST, because a tag may name another image tomorrow, or empty; this is \"${var.image}\"."
  }
}

variable "model" {
  description = "The folder with the weights, as the build prints it: gs://PROJECT-voxbatch-models/OWNER/NAME/COMMIT. Empty: the image's own model."
  type        = string
  default     = ""
}

variable "hub_token_secret" {
  description = "The name of a secret in Secret Manager with a hub token, for a gated or private model. Terraform never reads the token."
  type        = string
  default     = ""
  validation {
    condition     = can(regex("^[A-Za-z0-9_-]*$", var.hub_token_secret)) && !startswith(var.hub_token_secret, "hf_")
    error_message = "hub_token_secret is the name of a secret of this project, such as voxbatch-hf-token, or empty; it is never the token."
  }
}

variable "bucket_in" {
  description = "The bucket of uploads, with in/ and nightly/. Empty: PROJECT-voxbatch-in."
  type        = string
  default     = ""
}

variable "bucket_out" {
  description = "The bucket of outputs, with out/. Empty: PROJECT-voxbatch-out."
  type        = string
  default     = ""
}

variable "bucket_models" {
  description = "The bucket of weights. Empty: PROJECT-voxbatch-models."
  type        = string
  default     = ""
}

variable "uploads" {
  description = "The mechanism that takes uploads to in/: workflow, worker (a GPU that is always on) or none."
  type        = string
  default     = "workflow"
  validation {
    condition     = contains(["workflow", "worker", "none"], var.uploads)
    error_message = "uploads is one of workflow, worker, none; this is \"${var.uploads}\"."
  }
}

variable "nightly" {
  description = "Uploads to nightly/ are run by night."
  type        = bool
  default     = true
}

variable "schedule" {
  description = "The time of the nightly run, in cron's format."
  type        = string
  default     = "0 2 * * *"
  validation {
    condition     = length(regexall("[^ ]+", var.schedule)) == 5
    error_message = "schedule has the five fields of cron, such as 0 2 * * *; this is \"${var.schedule}\"."
  }
}

variable "time_zone" {
  description = "The time zone of schedule."
  type        = string
  default     = "Etc/UTC"
}

variable "tasks" {
  description = "The tasks of an execution that says no other number."
  type        = number
  default     = 1
  validation {
    condition     = var.tasks >= 1 && var.tasks <= 10000 && floor(var.tasks) == var.tasks
    error_message = "tasks is a whole number from 1 to 10000; this is ${var.tasks}."
  }
}

variable "parallelism" {
  description = "Tasks at a time. 0: as many as the GPU quota allows."
  type        = number
  default     = 0
  validation {
    condition     = var.parallelism >= 0 && var.parallelism <= 10000 && floor(var.parallelism) == var.parallelism
    error_message = "parallelism is a whole number from 0 to 10000; this is ${var.parallelism}."
  }
}

variable "max_retries" {
  description = "New attempts of a task, each of which resumes from the committed parts."
  type        = number
  default     = 5
  validation {
    condition     = var.max_retries >= 0 && var.max_retries <= 10 && floor(var.max_retries) == var.max_retries
    error_message = "max_retries is a whole number from 0 to 10; this is ${var.max_retries}."
  }
}

variable "task_timeout" {
  description = "Seconds for an attempt. GPU tasks are sure to get no more than 3600."
  type        = number
  default     = 3600
  validation {
    condition     = var.task_timeout >= 60 && var.task_timeout <= 604800 && floor(var.task_timeout) == var.task_timeout
    error_message = "task_timeout is a whole number of seconds from 60 to 604800; this is ${var.task_timeout}."
  }
}

variable "usd_per_hour" {
  description = "The price of an hour of a task, for the cost that a run reports."
  type        = number
  default     = 1.421
  validation {
    condition     = var.usd_per_hour >= 0
    error_message = "usd_per_hour is a price, such as 1.421; this is ${var.usd_per_hour}."
  }
}

variable "alerts" {
  description = "Make the log metrics and alert policies."
  type        = bool
  default     = true
  validation {
    condition     = !var.alerts || var.alert_email != "" || var.channel != ""
    error_message = "alerts need a receiver: set alert_email or channel, or alerts = false if nobody is to be told of lost or failed runs."
  }
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

variable "channel" {
  description = "An existing notification channel that alerts are sent to."
  type        = string
  default     = ""
  validation {
    condition     = var.channel == "" || can(regex("^projects/[^/]+/notificationChannels/[^/]+$", var.channel))
    error_message = "channel is projects/…/notificationChannels/…, see: gcloud beta monitoring channels list; this is \"${var.channel}\"."
  }
}
