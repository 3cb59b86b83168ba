# Log metrics and alert policies, from the files that deploy.sh uses, and whom the alerts are sent to.

locals {
  metrics  = { for file, metric in local.document : metric.name => metric if var.alerts && startswith(file, "metrics/") }
  policies = { for file, policy in local.document : policy.displayName => policy if var.alerts && startswith(file, "alerts/") }
  channels = concat(compact([var.channel]), google_monitoring_notification_channel.email[*].id)
}

resource "google_monitoring_notification_channel" "email" {
  count = var.alerts && var.alert_email != "" ? 1 : 0

  project      = var.project
  type         = "email"
  display_name = "voxbatch"
  labels       = { email_address = var.alert_email }
  depends_on   = [google_project_service.api]
}

resource "google_logging_metric" "metric" {
  for_each = local.metrics

  project          = var.project
  name             = each.key
  description      = each.value.description
  filter           = each.value.filter
  label_extractors = try(each.value.labelExtractors, null)
  value_extractor  = try(each.value.valueExtractor, null)

  metric_descriptor {
    metric_kind  = each.value.metricDescriptor.metricKind
    value_type   = each.value.metricDescriptor.valueType
    unit         = each.value.metricDescriptor.unit
    display_name = each.value.metricDescriptor.displayName
    dynamic "labels" {
      for_each = try(each.value.metricDescriptor.labels, [])
      content {
        key         = labels.value.key
        value_type  = labels.value.valueType
        description = labels.value.description
      }
    }
  }
  depends_on = [google_project_service.api]
}

resource "google_monitoring_alert_policy" "policy" {
  for_each = local.policies

  project               = var.project
  display_name          = each.key
  combiner              = each.value.combiner
  enabled               = each.value.enabled
  user_labels           = each.value.userLabels
  notification_channels = local.channels

  documentation {
    mime_type = each.value.documentation.mimeType
    content   = each.value.documentation.content
  }
  dynamic "conditions" {
    for_each = each.value.conditions
    content {
      display_name = conditions.value.displayName
      dynamic "condition_threshold" {
        for_each = try([conditions.value.conditionThreshold], [])
        content {
          filter          = condition_threshold.value.filter
          comparison      = condition_threshold.value.comparison
          threshold_value = condition_threshold.value.thresholdValue
          duration        = condition_threshold.value.duration
          trigger {
            count = condition_threshold.value.trigger.count
          }
          dynamic "aggregations" {
            for_each = condition_threshold.value.aggregations
            content {
              alignment_period     = aggregations.value.alignmentPeriod
              per_series_aligner   = aggregations.value.perSeriesAligner
              cross_series_reducer = try(aggregations.value.crossSeriesReducer, null)
              group_by_fields      = try(aggregations.value.groupByFields, null)
            }
          }
        }
      }
      dynamic "condition_matched_log" {
        for_each = try([conditions.value.conditionMatchedLog], [])
        content {
          filter           = condition_matched_log.value.filter
          label_extractors = condition_matched_log.value.labelExtractors
        }
      }
    }
  }
  dynamic "alert_strategy" {
    for_each = try([each.value.alertStrategy], [])
    content {
      auto_close = alert_strategy.value.autoClose
      notification_rate_limit {
        period = alert_strategy.value.notificationRateLimit.period
      }
    }
  }

  depends_on = [time_sleep.known_everywhere] # a policy is refused while its log metric is not known
}
