# What wakes the dispatcher: an upload (Eventarc and a workflow), each hour, and the night.

locals {
  schedules = merge(
    var.uploads != "workflow" ? {} : {
      voxbatch-sweep = { job = "voxbatch-dispatch", schedule = "0 * * * *", time_zone = "Etc/UTC" }
    },
    !var.nightly ? {} : {
      voxbatch-nightly = { job = "voxbatch-nightly", schedule = var.schedule, time_zone = var.time_zone }
    },
  )
  workflows = toset(var.uploads == "workflow" ? ["voxbatch"] : [])
}

resource "google_workflows_workflow" "workflow" {
  for_each = local.workflows

  project             = var.project
  region              = var.region
  name                = each.key
  description         = "An uploaded manifest wakes the dispatcher of voxbatch"
  service_account     = google_service_account.account["start"].email
  source_contents     = file("${path.module}/workflow.yaml")
  deletion_protection = false
  user_env_vars = {
    JOB    = google_cloud_run_v2_job.dispatcher["voxbatch-dispatch"].id
    BUCKET = google_storage_bucket.bucket["in"].name
    PREFIX = var.prefix_uploads
    LOCKS  = google_storage_bucket.bucket["out"].name
    WINDOW = tostring(var.batch_window)
  }
}

resource "google_eventarc_trigger" "trigger" {
  for_each = local.workflows

  project         = var.project
  location        = var.region
  name            = each.key
  service_account = google_service_account.account["start"].email

  # The topic has only the uploads to one folder. An event of the bucket has no prefix: each object anywhere in it would
  # start the workflow.
  matching_criteria {
    attribute = "type"
    value     = "google.cloud.pubsub.topic.v1.messagePublished"
  }
  transport {
    pubsub {
      topic = google_pubsub_topic.topic["voxbatch-uploads"].id
    }
  }
  destination {
    workflow = google_workflows_workflow.workflow[each.key].id
  }

  depends_on = [time_sleep.known_everywhere]
}

resource "google_cloud_scheduler_job" "schedule" {
  for_each = local.schedules

  project     = var.project
  region      = var.region
  name        = each.key
  description = "executes ${each.value.job}"
  schedule    = each.value.schedule
  time_zone   = each.value.time_zone

  http_target {
    http_method = "POST"
    uri         = "https://run.googleapis.com/v2/${google_cloud_run_v2_job.dispatcher[each.value.job].id}:run"
    headers     = { "Content-Type" = "application/json" }
    body        = base64encode("{}")
    oauth_token {
      service_account_email = google_service_account.account["start"].email
    }
  }
  retry_config {
    retry_count = 3
  }

  depends_on = [time_sleep.known_everywhere]
}
