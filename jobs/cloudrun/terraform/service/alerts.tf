# Alert policies. Each says what happened, what to look at, and how.

locals {
  # Requests that Cloud Run refuses for lack of an instance end with 429. Other errors of 4xx are the clients' own. A
  # WebSocket ends with 101, and is in the class 1xx.
  of_service = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=\"voxbatch-serve\""
  requests   = "metric.type=\"run.googleapis.com/request_count\" AND ${local.of_service}"

  alerts = {
    "service errors" = {
      severity    = "CRITICAL"
      text        = <<-END
        More than 5 % of the requests to voxbatch-serve failed in five minutes. 429: no instance was free, and MAX_INSTANCES
        are running; deploy with more (each needs the quota of an L4), or with a higher CONCURRENCY. 503 and 500: an instance
        did not start, or its engine died; read the end of its log:
        gcloud logging read 'resource.labels.service_name="voxbatch-serve"' --freshness=7d --limit=50
      END
      title       = "over 5 % of the requests failed"
      filter      = "${local.requests} AND (metric.labels.response_code_class=\"5xx\" OR metric.labels.response_code=\"429\")"
      denominator = local.requests
      comparison  = "COMPARISON_GT"
      threshold   = 0.05
      duration    = "0s"
      missing     = null
      aligner     = "ALIGN_DELTA"
      reducer     = "REDUCE_SUM"
    }
    "service latency" = {
      severity    = "ERROR"
      text        = <<-END
        Of the requests that voxbatch-serve answered in five minutes, 5 % took longer than 2 s. A first request waits for the
        start of an instance, in minutes. Without a start: deploy with a lower CONCURRENCY and more MAX_INSTANCES, or send
        shorter recordings. WebSockets do not count: one lasts as long as somebody speaks.
      END
      title       = "P95 over 2 s"
      filter      = "metric.type=\"run.googleapis.com/request_latencies\" AND ${local.of_service} AND metric.labels.response_code_class=\"2xx\""
      denominator = null
      comparison  = "COMPARISON_GT"
      threshold   = 2000 # milliseconds
      duration    = "0s"
      missing     = null
      aligner     = "ALIGN_DELTA"
      reducer     = "REDUCE_PERCENTILE_95"
    }
    "service gpu idle" = {
      severity    = "WARNING"
      text        = <<-END
        For half an hour, an L4 of voxbatch-serve was billed and less than 20 % busy. An instance stays while it has a
        request: look for WebSockets that clients keep open without speech, and for a monitor that sends requests all the
        time. If the traffic is what it should be, deploy with a lower MAX_INSTANCES and a higher CONCURRENCY.
      END
      title       = "GPU utilisation below 20 %"
      filter      = "metric.type=\"run.googleapis.com/container/gpu/utilizations\" AND ${local.of_service}"
      denominator = null
      comparison  = "COMPARISON_LT"
      threshold   = 0.2
      duration    = "1800s"                            # longer than an instance without requests stays
      missing     = "EVALUATION_MISSING_DATA_INACTIVE" # without an instance there is no GPU to pay
      aligner     = "ALIGN_PERCENTILE_95"
      reducer     = "REDUCE_MEAN"
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
  conditions {
    display_name = each.value.title
    condition_threshold {
      filter                  = each.value.filter
      denominator_filter      = each.value.denominator
      comparison              = each.value.comparison
      threshold_value         = each.value.threshold
      duration                = each.value.duration
      evaluation_missing_data = each.value.missing
      trigger {
        count = 1
      }
      aggregations {
        alignment_period     = "300s"
        per_series_aligner   = each.value.aligner
        cross_series_reducer = each.value.reducer
        group_by_fields      = ["resource.label.service_name"]
      }
      dynamic "denominator_aggregations" {
        for_each = each.value.denominator == null ? [] : [each.value]
        content {
          alignment_period     = "300s"
          per_series_aligner   = denominator_aggregations.value.aligner
          cross_series_reducer = denominator_aggregations.value.reducer
          group_by_fields      = ["resource.label.service_name"]
        }
      }
    }
  }
  lifecycle {
    precondition {
      condition     = var.channel != ""
      error_message = "alerts need a receiver: set channel, or alerts = false if nobody is to be told of lost or failed runs."
    }
  }
}
