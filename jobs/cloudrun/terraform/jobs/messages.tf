# Every upload is a message that waits until its run has started.

resource "google_pubsub_topic" "topic" {
  # The night has a topic of its own, because each message of voxbatch-uploads starts the workflow.
  for_each = toset(["voxbatch-uploads", "voxbatch-nightly", "voxbatch-dead"])

  project    = var.project
  name       = each.key
  depends_on = [google_project_service.api]
}

locals {
  # Pub/Sub cannot change the filter of a subscription: Terraform replaces the subscription, with the messages in it.
  filters = {
    # Messages that people send have no objectId.
    voxbatch-uploads = "NOT attributes:objectId OR (attributes.eventType = \"OBJECT_FINALIZE\" AND hasPrefix(attributes.objectId, \"${var.prefix_uploads}\"))"
    voxbatch-nightly = "attributes.eventType = \"OBJECT_FINALIZE\" AND hasPrefix(attributes.objectId, \"${var.prefix_nightly}\")"
  }
  retention = "2678400s" # 31 days, the maximum: an upload waits until somebody has repaired the fault

  topic_of = merge( # by the folder of the uploads
    var.uploads == "none" ? {} : { (var.prefix_uploads) = "voxbatch-uploads" },
    var.nightly ? { (var.prefix_nightly) = "voxbatch-nightly" } : {},
  )
}

resource "google_pubsub_subscription" "uploads" {
  for_each = local.filters

  project                    = var.project
  name                       = each.key
  topic                      = google_pubsub_topic.topic[each.key].id
  filter                     = each.value
  ack_deadline_seconds       = 600 # the time in which a listener may be too busy to extend its lease
  message_retention_duration = local.retention

  expiration_policy {
    ttl = "" # never
  }
  # A listener that is killed counts as a delivery. So does each nightly run that leaves the recordings of this day for
  # the next one: a schedule of every few minutes would use up any number of deliveries. Only the listener itself
  # dead-letters messages of the night.
  dynamic "dead_letter_policy" {
    for_each = each.key == "voxbatch-uploads" ? [google_pubsub_topic.topic["voxbatch-dead"].id] : []
    content {
      dead_letter_topic     = dead_letter_policy.value
      max_delivery_attempts = 20
    }
  }
  retry_policy {
    minimum_backoff = "60s"
    maximum_backoff = "600s"
  }
  lifecycle {
    precondition {
      condition     = !startswith(var.prefix_uploads, var.prefix_nightly) && !startswith(var.prefix_nightly, var.prefix_uploads)
      error_message = "prefix_uploads and prefix_nightly lie in each other, so that an upload would be run twice."
    }
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
  for_each = local.topic_of

  bucket             = google_storage_bucket.bucket["in"].name
  topic              = google_pubsub_topic.topic[each.value].id
  event_types        = ["OBJECT_FINALIZE"]
  object_name_prefix = each.key
  payload_format     = "JSON_API_V1"
  depends_on         = [google_pubsub_topic_iam_member.grant] # Cloud Storage tries to publish
}
