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

variable "bucket_models" {
  description = "The bucket of weights. Empty: PROJECT-voxbatch-models."
  type        = string
  default     = ""
}

variable "invokers" {
  description = "The members who may call the service: user:ADDRESS, group:ADDRESS, serviceAccount:ADDRESS."
  type        = list(string)
  validation {
    condition     = alltrue([for member in var.invokers : can(regex("^((user|group|serviceAccount|domain|principal|principalSet):[^, ]+|allUsers)$", member))])
    error_message = "invokers are members such as user:ADDRESS. With allUsers, every caller uses your GPU at your cost."
  }
}

variable "profile" {
  description = "A profile of voxbatch."
  type        = string
  default     = "ctx512"
}

variable "engine_options" {
  description = "Options of the engine, without max_num_seqs, which is concurrency. The default: 8 sessions of ten minutes fill an L4."
  type        = string
  default     = "max_model_len=8192 gpu_memory_utilization=0.9"
}

variable "concurrency" {
  description = "Requests at a time of an instance, in Cloud Run and in vLLM."
  type        = number
  default     = 8
  validation {
    condition     = var.concurrency >= 1 && var.concurrency <= 1000 && floor(var.concurrency) == var.concurrency
    error_message = "concurrency is a whole number from 1 to 1000; this is ${var.concurrency}."
  }
}

variable "max_instances" {
  description = "Instances at a time; each takes one L4 of the quota."
  type        = number
  default     = 1
  validation {
    condition     = var.max_instances >= 1 && var.max_instances <= 100 && floor(var.max_instances) == var.max_instances
    error_message = "max_instances is a whole number from 1 to 100; this is ${var.max_instances}."
  }
}

variable "start_delay" {
  description = "Seconds until the first probe of a start, which may take 420 s in all."
  type        = number
  default     = 0
  validation {
    condition     = var.start_delay >= 0 && var.start_delay <= 240 && floor(var.start_delay) == var.start_delay
    error_message = "start_delay is a whole number from 0 to 240; this is ${var.start_delay}."
  }
}

variable "ingress" {
  description = "The networks whose requests the service takes."
  type        = string
  default     = "INGRESS_TRAFFIC_ALL"
  validation {
    condition     = contains(["INGRESS_TRAFFIC_ALL", "INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"], var.ingress)
    error_message = "ingress is one of INGRESS_TRAFFIC_ALL, INGRESS_TRAFFIC_INTERNAL_ONLY, INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER; this is \"${var.ingress}\"."
  }
}

variable "rate_limit" {
  description = "Requests that one address may send to an instance in a period, such as 60/minute; more are answered 429. Empty: no limit."
  type        = string
  default     = ""
  validation {
    condition     = can(regex("^([1-9][0-9]*/(second|minute|hour|day))?$", var.rate_limit))
    error_message = "rate_limit is N/PERIOD, such as 60/minute; this is \"${var.rate_limit}\"."
  }
}

variable "alerts" {
  description = "Make the alert policies."
  type        = bool
  default     = true
}

variable "channel" {
  description = "The notification channel that alerts are sent to: output channel of the module foundation, or another one."
  type        = string
  default     = ""
}
