# The names, and what everything else stands on: APIs, service agents, buckets and accounts. The module foundation comes
# first: the repository, the weights and the hub token are there.

locals {
  apis = toset(concat(
    ["cloudscheduler", "pubsub", "run"],
    var.uploads == "workflow" ? ["eventarc", "eventarcpublishing", "workflowexecutions", "workflows"] : [],
  ))
  # Google's own accounts (service agents) of these services. One that is made here, and not by the first use of the
  # service, has no role until it is granted.
  agents = setintersection(local.apis, ["cloudscheduler", "eventarc", "pubsub", "workflows"])

  buckets = {
    in      = coalesce(var.bucket_in, "${var.project}-voxbatch-in")
    out     = coalesce(var.bucket_out, "${var.project}-voxbatch-out")
    kernels = coalesce(var.bucket_kernels, "${var.project}-voxbatch-kernels")
  }
  bucket_models = coalesce(var.bucket_models, "${var.project}-voxbatch-models") # of the module foundation
  out           = "gs://${local.buckets.out}/out"
  place = { # of uploads
    uploads = "gs://${local.buckets.in}/${var.prefix_uploads}"
    nightly = "gs://${local.buckets.in}/${var.prefix_nightly}"
  }

  accounts = merge(
    {
      dispatch = "voxbatch: reads uploads and starts runs"
      kernels  = "voxbatch: compiles kernels"
      run      = "voxbatch: transcribes"
      start    = "voxbatch: wakes the dispatcher"
    },
    var.uploads == "worker" ? { listen = "voxbatch: transcribes uploads at once" } : {},
  )
}

resource "google_project_service" "api" {
  for_each = local.apis

  project            = var.project
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false # others may need it
}

resource "google_project_service_identity" "agent" {
  provider = google-beta
  for_each = local.agents

  project    = var.project
  service    = "${each.key}.googleapis.com"
  depends_on = [google_project_service.api]
}

data "google_storage_project_service_account" "agent" {
  project = var.project
}

resource "google_storage_bucket" "bucket" {
  for_each = local.buckets

  project                     = var.project
  name                        = each.value
  location                    = upper(var.region)
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
}

resource "google_service_account" "account" {
  for_each = local.accounts

  project      = var.project
  account_id   = "voxbatch-${each.key}"
  display_name = each.value
}

# Google needs some minutes until all of it knows a new service agent, its roles, and a new log metric.
resource "time_sleep" "known_everywhere" {
  create_duration = "120s"
  depends_on = [
    google_project_iam_member.grant,
    google_project_service_identity.agent,
    google_logging_metric.metric,
  ]
}
