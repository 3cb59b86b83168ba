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
  description = "The container, by its digest: a tag may name another image tomorrow."
  type        = string
}

variable "model" {
  description = "The folder with the weights, as the build prints it: gs://PROJECT-voxbatch-models/OWNER/NAME/COMMIT. Empty: the image's own model."
  type        = string
  default     = ""
}

variable "hub_token" {
  description = "The secret voxbatch-hf-token of the module foundation has a hub token, for a gated or private model."
  type        = bool
  default     = false
}

variable "bucket_in" {
  description = "The bucket of uploads. Empty: PROJECT-voxbatch-in."
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

variable "bucket_kernels" {
  description = "The bucket of compiled kernels. Empty: PROJECT-voxbatch-kernels."
  type        = string
  default     = ""
}

variable "uploads" {
  description = "The mechanism that takes uploads to prefix_uploads: workflow, worker (a GPU that is always on) or none."
  type        = string
  default     = "workflow"
  validation {
    condition     = contains(["workflow", "worker", "none"], var.uploads)
    error_message = "uploads is one of workflow, worker, none; this is \"${var.uploads}\"."
  }
}

variable "prefix_uploads" {
  description = "The folder in which an uploaded manifest starts a run."
  type        = string
  default     = "in/"
  validation {
    condition     = can(regex("^([A-Za-z0-9_.=-]+/)+$", var.prefix_uploads))
    error_message = "prefix_uploads is a folder of the bucket, such as in/; this is \"${var.prefix_uploads}\"."
  }
}

variable "nightly" {
  description = "Uploads to prefix_nightly are run by night."
  type        = bool
  default     = true
}

variable "prefix_nightly" {
  description = "The folder whose uploads are run by night."
  type        = string
  default     = "nightly/"
  validation {
    condition     = can(regex("^([A-Za-z0-9_.=-]+/)+$", var.prefix_nightly))
    error_message = "prefix_nightly is a folder of the bucket, such as nightly/; this is \"${var.prefix_nightly}\"."
  }
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

variable "max_tasks" {
  description = "Tasks that the dispatcher may give a run. A run that needs more is a dead letter."
  type        = number
  default     = 100
  validation {
    condition     = var.max_tasks >= 1 && var.max_tasks <= 10000 && floor(var.max_tasks) == var.max_tasks
    error_message = "max_tasks is a whole number from 1 to 10000; this is ${var.max_tasks}."
  }
}

variable "max_usd" {
  description = "The price that a run may be expected to have. A dearer run is a dead letter. 0: no limit."
  type        = number
  default     = 0
  validation {
    condition     = var.max_usd >= 0
    error_message = "max_usd is a price, or 0 for no limit; this is ${var.max_usd}."
  }
}

variable "max_usd_per_day" {
  description = "What the executions that a dispatcher starts in a UTC day may be expected to cost. A run above it is a dead letter. 0: no limit."
  type        = number
  default     = 300
  validation {
    condition     = var.max_usd_per_day >= 0
    error_message = "max_usd_per_day is a price, or 0 for no limit; this is ${var.max_usd_per_day}."
  }
}

variable "budget_usd" {
  description = "A budget of the project for a month, in the currency of the billing account. 0: no budget."
  type        = number
  default     = 0
  validation {
    condition     = var.budget_usd >= 0 && floor(var.budget_usd) == var.budget_usd
    error_message = "budget_usd is a whole number, or 0 for no budget; this is ${var.budget_usd}."
  }
}

variable "billing_account" {
  description = "The billing account that budget_usd belongs to, such as 012345-6789AB-CDEF01."
  type        = string
  default     = ""
}

variable "batch_window" {
  description = "Seconds of uploads that are started together: manifests by one dispatcher, recordings of a worker in one run. 0: each by itself."
  type        = number
  default     = 60
  validation {
    condition     = var.batch_window >= 0 && var.batch_window <= 86400 && floor(var.batch_window) == var.batch_window
    error_message = "batch_window is a whole number of seconds from 0 to 86400; this is ${var.batch_window}."
  }
}

variable "parallelism" {
  description = "Tasks at a time. 0: as many as the quotas allow."
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
  description = "Seconds for an attempt. Google allows a task with a GPU 12 hours; over an hour is in preview."
  type        = number
  default     = 3600
  validation {
    condition     = var.task_timeout >= 60 && var.task_timeout <= 43200 && floor(var.task_timeout) == var.task_timeout
    error_message = "task_timeout is a whole number of seconds from 60 to 43200; this is ${var.task_timeout}."
  }
}

variable "memory_gib" {
  description = "GiB of memory of a task. Without a disk, weights and kernels lie in it, too: then 32."
  type        = number
  default     = 16
  validation {
    condition     = var.memory_gib >= 16 && var.memory_gib <= 32 && floor(var.memory_gib) == var.memory_gib
    error_message = "memory_gib is a whole number from 16, which an L4 requires, to 32; this is ${var.memory_gib}."
  }
}

variable "disk_gib" {
  description = "GiB of disk of a task, for weights and kernels. 0: no disk."
  type        = number
  default     = 20
  validation {
    condition     = var.disk_gib == 0 || (var.disk_gib >= 10 && floor(var.disk_gib) == var.disk_gib)
    error_message = "disk_gib is a whole number from 10, or 0 for no disk; this is ${var.disk_gib}."
  }
}

variable "usd_per_hour" {
  description = "The price of an hour of a task, for the cost that a run reports. The default is that of 16 GiB."
  type        = number
  default     = 1.306
  validation {
    condition     = var.usd_per_hour >= 0
    error_message = "usd_per_hour is a price, such as 1.306; this is ${var.usd_per_hour}."
  }
}

variable "alerts" {
  description = "Make the log metrics, the alert policies and the dashboard."
  type        = bool
  default     = true
}

variable "channel" {
  description = "The notification channel that alerts are sent to: output channel of the module foundation, or another one."
  type        = string
  default     = ""
}
