# The jobs and the worker pool.

locals {
  # What a task with a GPU has. An argument of an execution replaces the job's own: run gs://…/day.jsonl -o gs://…/day
  gpu = {
    limits = { cpu = "8", memory = "${var.memory_gib}Gi", "nvidia.com/gpu" = "1" }
    cache  = "/cache" # weights and kernels; without a disk it is in memory
    env = merge(
      {
        VOXBATCH_USD_PER_HOUR = tostring(var.usd_per_hour)               # for the cost that a run reports
        VOXBATCH_KERNEL_CACHE = "gs://${local.buckets.kernels}/compiled" # kernels of an earlier run save minutes of each start
      },
      var.model == "" ? {} : { VOXBATCH_MODEL = var.model },
    )
    secrets = var.hub_token ? { HF_TOKEN = "voxbatch-hf-token" } : {}
    disks   = var.disk_gib == 0 ? [] : ["${var.disk_gib}Gi"]
  }
  gpu_jobs = {
    voxbatch = {
      account     = "run"
      tasks       = var.tasks
      parallelism = var.parallelism                 # 0: as many tasks as the quotas allow
      env         = { VOXBATCH_EXIT_ZERO = "true" } # failed items must not cause a retry of the task; an alert reports them
    }
    voxbatch-kernels = { account = "kernels", tasks = 1, parallelism = 1, env = {} } # runs recordings of ours only
  }

  # The jobs that start runs: they pull the uploads from a subscription, count the hours of each, and execute the job
  # "voxbatch" with as many tasks as they need. They have no GPU, and cost next to nothing without uploads.
  to_voxbatch = concat(
    ["--drain", "--to", "cloudrun", "--project", var.project, "--region", var.region, "--job", "voxbatch"],
    ["--tasks", "auto", "--max-tasks", tostring(var.max_tasks), "--usd-per-hour", tostring(var.usd_per_hour)],
    ["--max-usd-per-day", tostring(var.max_usd_per_day)],
    var.max_usd == 0 ? [] : ["--max-usd", tostring(var.max_usd)],
  )
  dispatchers = merge(
    var.uploads != "workflow" ? {} : {
      # The workflow (at an upload) and the schedule voxbatch-sweep (every hour) execute this job.
      voxbatch-dispatch = concat(
        ["listen", "--subscription", google_pubsub_subscription.uploads["voxbatch-uploads"].id],
        ["-o", local.out, "--prefix", local.place.uploads],
        local.to_voxbatch,
      )
    },
    !var.nightly ? {} : {
      # One run of the recordings of a day, which ends at midnight UTC; younger recordings wait for the next night. One
      # run of each manifest.
      voxbatch-nightly = concat(
        ["listen", "--subscription", google_pubsub_subscription.uploads["voxbatch-nightly"].id],
        ["--dead-letter", google_pubsub_topic.topic["voxbatch-dead"].id],
        ["-o", "${local.out}/nightly", "--prefix", local.place.nightly, "--recordings", local.place.nightly],
        ["--batch-window", "86400"],
        local.to_voxbatch,
      )
    },
  )
  job = merge(google_cloud_run_v2_job.gpu, google_cloud_run_v2_job.dispatcher)
}

resource "google_cloud_run_v2_job" "gpu" {
  for_each = local.gpu_jobs

  project             = var.project
  location            = var.region
  name                = each.key
  launch_stage        = "BETA" # GPUs and disks of jobs, and a limit over an hour, are in preview in some regions
  deletion_protection = false  # a job holds no data

  template {
    task_count  = each.value.tasks
    parallelism = each.value.parallelism

    template {
      # An attempt ends at its time limit, and when Google maintains the machine. The next attempt resumes from the
      # committed parts, so that a task has (max_retries + 1) × task_timeout in total.
      max_retries                   = var.max_retries
      timeout                       = "${var.task_timeout}s"
      service_account               = google_service_account.account[each.value.account].email
      gpu_zonal_redundancy_disabled = true # the only kind for jobs, and the cheaper one

      node_selector {
        accelerator = "nvidia-l4"
      }
      containers {
        image = var.image
        args  = ["doctor"] # the command of an execution without arguments
        resources {
          limits = local.gpu.limits
        }
        dynamic "env" {
          for_each = merge(local.gpu.env, each.value.env)
          content {
            name  = env.key
            value = env.value
          }
        }
        dynamic "env" {
          for_each = local.gpu.secrets
          content {
            name = env.key
            value_source {
              secret_key_ref {
                secret  = env.value
                version = "latest"
              }
            }
          }
        }
        dynamic "volume_mounts" {
          for_each = local.gpu.disks
          content {
            name       = "cache"
            mount_path = local.gpu.cache
          }
        }
      }
      dynamic "volumes" {
        for_each = local.gpu.disks
        content {
          name = "cache"
          empty_dir {
            medium     = "DISK"
            size_limit = volumes.value
          }
        }
      }
    }
  }

  depends_on = [google_storage_bucket_iam_member.grant, google_secret_manager_secret_iam_member.grant]
}

resource "google_cloud_run_v2_job" "dispatcher" {
  for_each = local.dispatchers

  project             = var.project
  location            = var.region
  name                = each.key
  deletion_protection = false

  template {
    template {
      max_retries     = 3
      timeout         = "86400s"
      service_account = google_service_account.account["dispatch"].email
      containers {
        image = var.image
        args  = each.value
        resources {
          limits = { cpu = "2", memory = "4Gi" }
        }
      }
    }
  }

  depends_on = [google_storage_bucket_iam_member.grant, google_pubsub_subscription_iam_member.grant]
}

# A GPU that waits for uploads and messages. It is billed from its creation to its deletion, busy or idle, so it is worth
# its price if a transcript is needed within seconds. It runs manifests, and each recording below each/.
resource "google_cloud_run_v2_worker_pool" "listen" {
  count = var.uploads == "worker" ? 1 : 0

  project             = var.project
  location            = var.region
  name                = "voxbatch-listen"
  launch_stage        = "BETA"
  deletion_protection = false

  scaling {
    manual_instance_count = 1
  }
  template {
    service_account               = google_service_account.account["listen"].email
    gpu_zonal_redundancy_disabled = true

    node_selector {
      accelerator = "nvidia-l4"
    }
    containers {
      image = var.image
      args = [
        "listen", "--subscription", google_pubsub_subscription.uploads["voxbatch-uploads"].id, "-o", local.out,
        "--prefix", local.place.uploads, "--recordings", "${local.place.uploads}each/",
        "--batch-window", tostring(var.batch_window),
      ]
      resources {
        limits = local.gpu.limits
      }
      dynamic "env" {
        for_each = local.gpu.env
        content {
          name  = env.key
          value = env.value
        }
      }
      dynamic "env" {
        for_each = local.gpu.secrets
        content {
          name = env.key
          value_source {
            secret_key_ref {
              secret  = env.value
              version = "latest"
            }
          }
        }
      }
      dynamic "volume_mounts" {
        for_each = local.gpu.disks
        content {
          name       = "cache"
          mount_path = local.gpu.cache
        }
      }
    }
    dynamic "volumes" {
      for_each = local.gpu.disks
      content {
        name = "cache"
        empty_dir {
          medium     = "DISK"
          size_limit = volumes.value
        }
      }
    }
  }

  depends_on = [
    google_secret_manager_secret_iam_member.grant,
    google_storage_bucket_iam_member.grant,
    google_pubsub_subscription_iam_member.grant,
  ]
}
