# Who may do what, on the smallest resource that has a policy.

locals {
  member = merge(
    { for key, account in google_service_account.account : key => account.member },
    { for key, agent in google_project_service_identity.agent : "${key}-agent" => agent.member },
    { storage-agent = data.google_storage_project_service_account.agent.member },
  )

  # Accounts that run ffmpeg on untrusted audio: they read recordings, weights and kernels, and write outputs. Only the
  # worker reads a subscription, and none of them starts a job.
  transcribers = concat(["run"], var.uploads == "worker" ? ["listen"] : [])

  # Accounts that read uploads, and the subscription.
  listeners = concat(
    [for name in keys(local.filters) : { who = "dispatch", subscription = name }],
    var.uploads == "worker" ? [{ who = "listen", subscription = "voxbatch-uploads" }] : [],
  )

  grants = {
    # Kernels are code that every task runs: only the account that never sees a stranger's recording writes them.
    bucket = concat(
      [for who in concat(local.transcribers, ["dispatch"]) : { who = who, role = "roles/storage.objectViewer", on = "in" }],
      [for who in concat(local.transcribers, ["dispatch"]) : { who = who, role = "roles/storage.objectUser", on = "out" }],
      [for who in concat(local.transcribers, ["kernels"]) : { who = who, role = "roles/storage.objectViewer", on = "models" }],
      [for who in local.transcribers : { who = who, role = "roles/storage.objectViewer", on = "kernels" }],
      [{ who = "kernels", role = "roles/storage.objectUser", on = "kernels" }],
      # One lock for each window of uploads.
      [for name in local.workflows : { who = "start", role = "roles/storage.objectCreator", on = "out", below = "wake/" }],
    )
    # A listener also reads where its dead letters go. Pub/Sub itself moves a message after its last delivery.
    subscription = concat(
      [for each in local.listeners : { who = each.who, role = "roles/pubsub.subscriber", on = each.subscription }],
      [for each in local.listeners : { who = each.who, role = "roles/pubsub.viewer", on = each.subscription }],
      [{ who = "pubsub-agent", role = "roles/pubsub.subscriber", on = "voxbatch-uploads" }],
    )
    topic = concat(
      [for topic in distinct(values(local.topic_of)) : { who = "storage-agent", role = "roles/pubsub.publisher", on = topic }],
      [{ who = "pubsub-agent", role = "roles/pubsub.publisher", on = "voxbatch-dead" }],
      [for who in distinct(local.listeners[*].who) : { who = who, role = "roles/pubsub.publisher", on = "voxbatch-dead" }],
    )
    job = concat(
      [
        { who = "dispatch", role = "roles/run.jobsExecutorWithOverrides", on = "voxbatch" },
        { who = "dispatch", role = "roles/run.viewer", on = "voxbatch" },
      ],
      [for schedule in values(local.schedules) : { who = "start", role = "roles/run.invoker", on = schedule.job }],
    )
    # These roles have no smaller scope.
    project = concat(
      [for agent in local.agents : { who = "${agent}-agent", role = "roles/${agent}.serviceAgent", on = var.project }],
      var.uploads != "workflow" ? [] : [
        { who = "start", role = "roles/workflows.invoker", on = var.project },
        { who = "start", role = "roles/eventarc.eventReceiver", on = var.project },
        { who = "start", role = "roles/logging.logWriter", on = var.project },
      ],
    )
    secret = [
      for who in concat(local.transcribers, ["kernels"]) :
      { who = who, role = "roles/secretmanager.secretAccessor", on = "voxbatch-hf-token" }
      if var.hub_token
    ]
  }
  grant = {
    for kind, grants in local.grants :
    kind => { for each in grants : "${each.who} ${each.role} ${each.on}" => each }
  }
}

resource "google_storage_bucket_iam_member" "grant" {
  for_each = local.grant.bucket

  bucket = each.value.on == "models" ? local.bucket_models : google_storage_bucket.bucket[each.value.on].name
  role   = each.value.role
  member = local.member[each.value.who]

  dynamic "condition" {
    for_each = [for folder in [try(each.value.below, "")] : folder if folder != ""]
    content {
      title      = "below ${condition.value}"
      expression = "resource.name.startsWith(\"projects/_/buckets/${google_storage_bucket.bucket[each.value.on].name}/objects/${condition.value}\")"
    }
  }
}

resource "google_pubsub_subscription_iam_member" "grant" {
  for_each = local.grant.subscription

  project      = var.project
  subscription = google_pubsub_subscription.uploads[each.value.on].name
  role         = each.value.role
  member       = local.member[each.value.who]
}

resource "google_pubsub_topic_iam_member" "grant" {
  for_each = local.grant.topic

  project = var.project
  topic   = google_pubsub_topic.topic[each.value.on].name
  role    = each.value.role
  member  = local.member[each.value.who]
}

resource "google_cloud_run_v2_job_iam_member" "grant" {
  for_each = local.grant.job

  project  = var.project
  location = var.region
  name     = local.job[each.value.on].name
  role     = each.value.role
  member   = local.member[each.value.who]
}

resource "google_project_iam_member" "grant" {
  for_each = local.grant.project

  project = each.value.on
  role    = each.value.role
  member  = local.member[each.value.who]
}

resource "google_secret_manager_secret_iam_member" "grant" {
  for_each = local.grant.secret

  project   = var.project
  secret_id = each.value.on
  role      = each.value.role
  member    = local.member[each.value.who]
}
