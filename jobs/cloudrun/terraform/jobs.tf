# The jobs and the worker pool, from the files that deploy.sh passes to gcloud.

locals {
  deployed = var.image != "" # without an image there is nothing to run yet

  # The variables of these files. Their values are known before anything exists, so that a plan shows each job.
  fill = {
    BUCKET_IN            = local.buckets.in
    BUCKET_OUT           = local.buckets.out
    CHANNEL              = "" # alerts.tf gives the channel
    DISPATCH_SA          = "voxbatch-dispatch@${var.project}.iam.gserviceaccount.com"
    FINGERPRINT          = "terraform"
    IMAGE                = var.image
    LISTEN_SA            = "voxbatch-listen@${var.project}.iam.gserviceaccount.com"
    MAX_RETRIES          = var.max_retries
    MODEL                = var.model
    NIGHTLY_WAIT_S       = "${var.schedule} ${var.time_zone}" == "0 2 * * * Etc/UTC" ? 97200 : 604800
    NIGHTLY_SUBSCRIPTION = "projects/${var.project}/subscriptions/voxbatch-nightly"
    OUT                  = "gs://${local.buckets.out}/out"
    PARALLELISM          = var.parallelism
    PROJECT              = var.project
    REGION               = var.region
    RUN_SA               = "voxbatch-run@${var.project}.iam.gserviceaccount.com"
    TASK_TIMEOUT         = var.task_timeout
    TASKS                = var.tasks
    TOKEN                = var.hub_token_secret
    TOKEN_THERE          = var.hub_token_secret
    UPLOADS_SUBSCRIPTION = "projects/${var.project}/subscriptions/voxbatch-uploads"
    UPLOADS_WAIT_S       = var.uploads == "worker" ? 86400 : 7200
    USD_PER_HOUR         = var.usd_per_hour
  }
  unset = [for name, value in local.fill : name if value == ""]

  files = setunion(
    ["job.yaml", "dispatch.yaml", "nightly.yaml", "worker.yaml"],
    fileset("${path.module}/..", "metrics/*.yaml"),
    fileset("${path.module}/..", "alerts/*.yaml"),
  )
  # As deploy.sh reads them: a line that ends in "# if NAME" counts only if NAME is set.
  document = {
    for file in local.files : file => yamldecode(join("\n", [
      for line in split("\n", templatefile("${path.module}/../${file}", local.fill)) : line
      if !anytrue([for name in local.unset : endswith(line, "# if ${name}")])
    ]))
  }

  job_files = concat(
    ["job.yaml"],
    var.uploads == "workflow" ? ["dispatch.yaml"] : [],
    var.nightly ? ["nightly.yaml"] : [],
  )
  pool_files = var.uploads == "worker" ? ["worker.yaml"] : []

  jobs = {
    for file, job in local.document : job.metadata.name => job
    if local.deployed && contains(local.job_files, file)
  }
  worker_pools = {
    for file, pool in local.document : pool.metadata.name => pool
    if local.deployed && contains(local.pool_files, file)
  }
}

resource "google_cloud_run_v2_job" "job" {
  for_each = local.jobs

  project             = var.project
  location            = var.region
  name                = each.key
  launch_stage        = try(each.value.metadata.annotations["run.googleapis.com/launch-stage"], null)
  deletion_protection = false # a job holds no data

  template {
    task_count  = each.value.spec.template.spec.taskCount
    parallelism = try(each.value.spec.template.spec.parallelism, null)

    template {
      max_retries                   = each.value.spec.template.spec.template.spec.maxRetries
      timeout                       = "${each.value.spec.template.spec.template.spec.timeoutSeconds}s"
      service_account               = each.value.spec.template.spec.template.spec.serviceAccountName
      gpu_zonal_redundancy_disabled = try(tobool(each.value.spec.template.metadata.annotations["run.googleapis.com/gpu-zonal-redundancy-disabled"]), null)

      dynamic "node_selector" {
        for_each = try([each.value.spec.template.spec.template.spec.nodeSelector["run.googleapis.com/accelerator"]], [])
        content {
          accelerator = node_selector.value
        }
      }
      dynamic "containers" {
        for_each = each.value.spec.template.spec.template.spec.containers
        content {
          image   = containers.value.image
          command = try(containers.value.command, null)
          args    = containers.value.args
          resources {
            limits = containers.value.resources.limits
          }
          dynamic "env" {
            for_each = try(containers.value.env, [])
            content {
              name  = env.value.name
              value = try(env.value.value, null)
              dynamic "value_source" {
                for_each = try([env.value.valueFrom.secretKeyRef], [])
                content {
                  secret_key_ref {
                    secret  = value_source.value.name
                    version = value_source.value.key
                  }
                }
              }
            }
          }
        }
      }
    }
  }

  depends_on = [
    google_service_account.account,
    google_secret_manager_secret_iam_member.grant,
    google_storage_bucket_iam_member.grant,
    google_pubsub_subscription_iam_member.grant,
  ]
}

resource "google_cloud_run_v2_worker_pool" "worker_pool" {
  for_each = local.worker_pools

  project             = var.project
  location            = var.region
  name                = each.key
  launch_stage        = each.value.metadata.annotations["run.googleapis.com/launch-stage"]
  deletion_protection = false

  scaling {
    manual_instance_count = each.value.metadata.annotations["run.googleapis.com/manualInstanceCount"]
  }
  template {
    service_account               = each.value.spec.template.spec.serviceAccountName
    gpu_zonal_redundancy_disabled = try(tobool(each.value.spec.template.metadata.annotations["run.googleapis.com/gpu-zonal-redundancy-disabled"]), null)

    node_selector {
      accelerator = each.value.spec.template.spec.nodeSelector["run.googleapis.com/accelerator"]
    }
    dynamic "containers" {
      for_each = each.value.spec.template.spec.containers
      content {
        image = containers.value.image
        args  = containers.value.args
        resources {
          limits = containers.value.resources.limits
        }
        dynamic "env" {
          for_each = try(containers.value.env, [])
          content {
            name  = env.value.name
            value = try(env.value.value, null)
            dynamic "value_source" {
              for_each = try([env.value.valueFrom.secretKeyRef], [])
              content {
                secret_key_ref {
                  secret  = value_source.value.name
                  version = value_source.value.key
                }
              }
            }
          }
        }
      }
    }
  }

  depends_on = [
    google_service_account.account,
    google_secret_manager_secret_iam_member.grant,
    google_storage_bucket_iam_member.grant,
    google_pubsub_subscription_iam_member.grant,
  ]
}
