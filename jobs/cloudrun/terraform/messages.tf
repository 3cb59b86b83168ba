# Every upload is a message that waits until its run has started.

resource "google_pubsub_topic" "topic" {
  for_each = toset(["voxbatch-uploads", "voxbatch-dead"])

  project    = var.project
  name       = each.key
  depends_on = [google_project_service.api]
}

locals {
  # Pub/Sub cannot change the filter of a subscription: Terraform replaces the subscription, with the messages in it.
  filters = {
    # Messages that people send have no objectId.
    voxbatch-uploads = "NOT attributes:objectId OR (attributes.eventType = \"OBJECT_FINALIZE\" AND hasPrefix(attributes.objectId, \"in/\"))"
    voxbatch-nightly = "attributes.eventType = \"OBJECT_FINALIZE\" AND hasPrefix(attributes.objectId, \"nightly/\")"
  }
  retention = "2678400s" # 31 days, the maximum: an upload waits until somebody has repaired the fault

  prefixes = toset(concat(var.uploads == "none" ? [] : ["in/"], var.nightly ? ["nightly/"] : []))
}

resource "google_pubsub_subscription" "uploads" {
  for_each = local.filters

  project                    = var.project
  name                       = each.key
  topic                      = google_pubsub_topic.topic["voxbatch-uploads"].id
  filter                     = each.value
  ack_deadline_seconds       = 600 # the time in which a listener may be too busy to extend its lease
  message_retention_duration = local.retention

  expiration_policy {
    ttl = "" # never
  }
  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.topic["voxbatch-dead"].id
    max_delivery_attempts = 20 # each listener that is stopped or removed counts as one
  }
  retry_policy {
    minimum_backoff = "60s"
    maximum_backoff = "600s"
  }
}

resource "google_pubsub_subscription" "dead" {
  project                    = var.project
  name                       = "voxbatch-dead"
  topic                      = google_pubsub_topic.topic["voxbatch-dead"].id
  ack_deadline_seconds       = 60
  message_retention_duration = local.retention

  expiration_policy {
    ttl = ""
  }
}

resource "google_storage_notification" "uploads" {
  for_each = local.prefixes

  bucket             = google_storage_bucket.bucket["in"].name
  topic              = google_pubsub_topic.topic["voxbatch-uploads"].id
  event_types        = ["OBJECT_FINALIZE"]
  object_name_prefix = each.key
  payload_format     = "JSON_API_V1"
  depends_on         = [google_pubsub_topic_iam_member.grant] # Cloud Storage tries to publish
}
