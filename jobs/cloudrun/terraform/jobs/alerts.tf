# Log metrics, alert policies and the dashboard. Each alert says what happened, what to look at, and how.

locals {
  metrics = {
    # Such a run exits with 0, so that the platform does not retry it in vain.
    voxbatch_failed_items = {
      description = "voxbatch runs that finished with failed items"
      title       = "voxbatch runs with failed items"
      condition   = "jsonPayload.failed>0"
      value       = null
      type        = "INT64"
      unit        = "1"
      labels      = { shard = "which task of how many" }
    }
    voxbatch_starved_seconds = {
      description = "Seconds that the GPU of a voxbatch task waited for audio"
      title       = "voxbatch GPU idle time"
      condition   = "jsonPayload.starved_s>=0"
      value       = "EXTRACT(jsonPayload.starved_s)"
      type        = "DISTRIBUTION"
      unit        = "s"
      labels      = {}
    }
  }

  waiting = "metric.type=\"pubsub.googleapis.com/subscription/oldest_unacked_message_age\" AND resource.type=\"pubsub_subscription\""
  ended   = "metric.type=\"run.googleapis.com/job/completed_execution_count\" AND resource.type=\"cloud_run_job\""
  by_job  = ["resource.label.job_name"]

  # The defaults of a condition.
  usual = { threshold = 0, duration = "0s", aligner = "ALIGN_SUM", reducer = "REDUCE_SUM", by = null }
  alerts = {
    "failed items" = {
      severity = "WARNING"
      text     = <<-END
        A run finished with failed items, or an execution failed. Which items, and why, stands in failures.jsonl of the
        run's output folder; why an execution failed, in the last lines of its log. Starting the same run again tries only
        what is not committed; to try failed items again, mend them, and upload failures.jsonl under another name.
      END
      conditions = {
        "a job's run has failed items"    = { filter = "metric.type=\"logging.googleapis.com/user/voxbatch_failed_items\" AND resource.type=\"cloud_run_job\"", by = local.by_job }
        "a worker's run has failed items" = { filter = "metric.type=\"logging.googleapis.com/user/voxbatch_failed_items\" AND resource.type=\"cloud_run_worker_pool\"" }
        "a pod's run has failed items"    = { filter = "metric.type=\"logging.googleapis.com/user/voxbatch_failed_items\" AND resource.type=\"k8s_container\"" }
        "an execution failed"             = { filter = "${local.ended} AND metric.labels.result=\"failed\" AND resource.labels.job_name=starts_with(\"voxbatch\")", by = local.by_job }
      }
    }
    "long executions" = {
      severity = "CRITICAL"
      text     = <<-END
        An execution has been running for 12 hours. It goes on, and costs: gcloud run jobs executions list --job=voxbatch
        --region=${var.region} shows it, voxbatch status OUT how far its run is, and gcloud run jobs executions cancel
        EXECUTION ends it. What is committed stays, and the same run started again continues.
      END
      conditions = {
        "an execution has been running for 12 hours" = {
          filter   = "metric.type=\"run.googleapis.com/job/running_executions\" AND resource.type=\"cloud_run_job\" AND resource.labels.job_name=\"voxbatch\""
          duration = "43200s"
          aligner  = "ALIGN_MAX"
          by       = local.by_job
        }
      }
    }
    "gpu idle" = {
      severity = "WARNING"
      text     = <<-END
        The GPU of a task waited for audio for over ten minutes in all. Decoding or the bucket is slower than the model:
        give the job more CPU, put bucket and job into one region, or run fewer, longer tasks.
      END
      conditions = {
        "a GPU waited for audio" = {
          filter    = "metric.type=\"logging.googleapis.com/user/voxbatch_starved_seconds\" AND resource.type=\"cloud_run_job\""
          threshold = 600
          aligner   = "ALIGN_PERCENTILE_99"
          reducer   = "REDUCE_MAX"
          by        = local.by_job
        }
      }
    }
    "dead letters" = {
      severity = "ERROR"
      text     = <<-END
        Something was uploaded or sent that cannot be run. Look at it, and at why (attribute voxbatch_reason), with:
        gcloud pubsub subscriptions pull voxbatch-dead --limit=10 ; once it is mended, replay it: docs/runbook.md, Dead letters.
      END
      conditions = {
        "messages wait in voxbatch-dead, or voxbatch-gke-dead" = {
          filter  = "metric.type=\"pubsub.googleapis.com/subscription/num_undelivered_messages\" AND resource.type=\"pubsub_subscription\" AND resource.labels.subscription_id=one_of(\"voxbatch-dead\", \"voxbatch-gke-dead\")"
          aligner = "ALIGN_MAX"
          reducer = null
        }
      }
    }
    "failed workflows" = {
      severity = "ERROR"
      text     = <<-END
        The workflow could not execute the dispatcher after an upload. Nothing is lost: the upload waits in the subscription
        voxbatch-uploads, and the schedule voxbatch-sweep executes the dispatcher at the next full hour. Why it failed:
        gcloud workflows executions list voxbatch --location=${var.region} --filter="state=FAILED" --limit=5, and then
        gcloud workflows executions describe EXECUTION --workflow=voxbatch --location=${var.region}.
      END
      conditions = {
        "an execution of the workflow failed" = {
          filter = "metric.type=\"workflows.googleapis.com/finished_execution_count\" AND resource.type=\"workflows.googleapis.com/Workflow\" AND resource.labels.workflow_id=\"voxbatch\" AND metric.labels.status=\"FAILED\""
        }
      }
    }
    "waiting uploads" = {
      severity = "ERROR"
      text     = <<-END
        An upload has waited for longer than it should until its run started. Nothing is lost: it waits for up to 31 days.
        Look at the last executions of the dispatcher and their logs: gcloud run jobs executions list
        --job=voxbatch-dispatch --region=${var.region} (uploads to ${var.prefix_nightly}: --job=voxbatch-nightly). Without
        executions, look at the schedules: gcloud scheduler jobs list --location=${var.region}.
      END
      conditions = {
        # Two sweeps, or a day for a worker, which keeps a message for as long as its run takes.
        "an upload to ${var.prefix_uploads} waits" = {
          filter    = "${local.waiting} AND resource.labels.subscription_id=\"voxbatch-uploads\""
          threshold = var.uploads == "worker" ? 86400 : 7200
          aligner   = "ALIGN_MAX"
          reducer   = null
        }
        # Of a worker on GKE, if there is one: see docs/kubernetes-slurm-batch.md.
        "an upload to gke/ waits" = {
          filter    = "${local.waiting} AND resource.labels.subscription_id=\"voxbatch-gke\""
          threshold = 86400
          aligner   = "ALIGN_MAX"
          reducer   = null
        }
        # A day ends at midnight UTC, and may wait for the next night and an hour of work; other schedules may skip days.
        "an upload to ${var.prefix_nightly} waits" = {
          filter    = "${local.waiting} AND resource.labels.subscription_id=\"voxbatch-nightly\""
          threshold = "${var.schedule} ${var.time_zone}" == "0 2 * * * Etc/UTC" ? 97200 : 604800
          aligner   = "ALIGN_MAX"
          reducer   = null
        }
      }
    }
  }
}

resource "google_logging_metric" "metric" {
  for_each = { for name, metric in local.metrics : name => metric if var.alerts }

  project          = var.project
  name             = each.key
  description      = each.value.description
  filter           = "resource.type=(\"cloud_run_job\" OR \"cloud_run_worker_pool\" OR \"k8s_container\") AND jsonPayload.message=\"run_finished\" AND ${each.value.condition}"
  label_extractors = { for label in keys(each.value.labels) : label => "EXTRACT(jsonPayload.${label})" }
  value_extractor  = each.value.value

  metric_descriptor {
    metric_kind  = "DELTA"
    value_type   = each.value.type
    unit         = each.value.unit
    display_name = each.value.title
    dynamic "labels" {
      for_each = each.value.labels
      content {
        key         = labels.key
        value_type  = "STRING"
        description = labels.value
      }
    }
  }
}

resource "google_monitoring_alert_policy" "alert" {
  for_each = { for name, alert in local.alerts : name => alert if var.alerts }

  project               = var.project
  display_name          = "voxbatch: ${each.key}"
  severity              = each.value.severity
  combiner              = "OR"
  notification_channels = [var.channel]

  documentation {
    mime_type = "text/markdown"
    content   = trimspace(replace(each.value.text, "\n", " "))
  }
  dynamic "conditions" {
    for_each = { for title, given in each.value.conditions : title => merge(local.usual, given) }
    content {
      display_name = conditions.key
      condition_threshold {
        filter          = conditions.value.filter
        comparison      = "COMPARISON_GT"
        threshold_value = conditions.value.threshold
        duration        = conditions.value.duration
        trigger {
          count = 1
        }
        aggregations {
          alignment_period     = "300s"
          per_series_aligner   = conditions.value.aligner
          cross_series_reducer = conditions.value.reducer
          group_by_fields      = conditions.value.by
        }
      }
    }
  }

  depends_on = [time_sleep.known_everywhere] # a policy is refused while its log metric is not known
}

locals {
  pending_executions = <<-END
    An execution has had no running task for 30 minutes: it waits for an L4, or for a quota. Nothing is lost, and a waiting
    task costs nothing. Look at: gcloud run jobs executions list --job=voxbatch --region=${var.region}. Without a free L4,
    wait, or run it on Google Batch (docs/runbook.md); too small a quota is raised in the console.
  END
}

# An execution whose tasks have no machine has no attempt that is running.
resource "google_monitoring_alert_policy" "pending_executions" {
  count = var.alerts ? 1 : 0

  project               = var.project
  display_name          = "voxbatch: pending executions"
  severity              = "ERROR"
  combiner              = "OR"
  notification_channels = [var.channel]

  documentation {
    mime_type = "text/markdown"
    content   = trimspace(replace(local.pending_executions, "\n", " "))
  }
  conditions {
    display_name = "an execution has no running task"
    condition_prometheus_query_language {
      query = join(" unless on (job_name) ", [
        for metric in ["job_running_executions", "job_running_task_attempts"] :
        "(sum by (job_name) (run_googleapis_com:${metric}{monitored_resource=\"cloud_run_job\",job_name=~\"voxbatch.*\"}) > 0)"
      ])
      duration            = "1800s"
      evaluation_interval = "60s"
    }
  }
}

locals {
  failed_schedules = <<-END
    Cloud Scheduler could not execute the job of a schedule. Uploads wait until the next time of the schedule; to start
    it now: gcloud scheduler jobs run voxbatch-sweep (or voxbatch-nightly) --location=${var.region}. PERMISSION_DENIED
    has two causes: the account voxbatch-start needs roles/run.invoker on the job, and Cloud Scheduler's own account
    (service-NUMBER@gcp-sa-cloudscheduler.iam.gserviceaccount.com) needs roles/cloudscheduler.serviceAgent on the
    project. Running deploy.sh again grants both.
  END
}

# Cloud Scheduler has no metric of its own. It logs the end of each attempt.
resource "google_monitoring_alert_policy" "failed_schedules" {
  count = var.alerts ? 1 : 0

  project               = var.project
  display_name          = "voxbatch: failed schedules"
  severity              = "ERROR"
  combiner              = "OR"
  notification_channels = [var.channel]

  documentation {
    mime_type = "text/markdown"
    content   = trimspace(replace(local.failed_schedules, "\n", " "))
  }
  conditions {
    display_name = "an attempt of a schedule failed"
    condition_matched_log {
      filter = join(" AND ", [
        "resource.type=\"cloud_scheduler_job\"",
        "(resource.labels.job_id=\"voxbatch-sweep\" OR resource.labels.job_id=\"voxbatch-nightly\")",
        "log_id(\"cloudscheduler.googleapis.com/executions\")",
        "jsonPayload.\"@type\"=\"type.googleapis.com/google.cloud.scheduler.logging.AttemptFinished\"",
        "severity>=ERROR",
      ])
      label_extractors = {
        schedule = "EXTRACT(resource.labels.job_id)"
        status   = "EXTRACT(jsonPayload.status)"
      }
    }
  }
  alert_strategy { # a policy on logs must have this limit
    auto_close = "7200s"
    notification_rate_limit {
      period = "3600s"
    }
  }
  lifecycle {
    precondition {
      condition     = var.channel != ""
      error_message = "alerts need a receiver: set channel, or alerts = false if nobody is to be told of lost or failed runs."
    }
  }
}

resource "google_monitoring_dashboard" "voxbatch" {
  count = var.alerts ? 1 : 0

  project        = var.project
  dashboard_json = file("${path.module}/dashboard.json")
}
