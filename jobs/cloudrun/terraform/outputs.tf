locals {
  hub_model = "mistralai/Voxtral-Mini-4B-Realtime-2602" # the model of a run that names none
}

output "bucket_in" {
  description = "The bucket of uploads."
  value       = google_storage_bucket.bucket["in"].name
}

output "bucket_out" {
  description = "The bucket of outputs."
  value       = google_storage_bucket.bucket["out"].name
}

output "bucket_models" {
  description = "The bucket of weights."
  value       = google_storage_bucket.bucket["models"].name
}

output "accounts" {
  description = "The service accounts, by what they do."
  value       = { for key, account in google_service_account.account : key => account.email }
}

output "jobs" {
  description = "The Cloud Run jobs; none before there is an image."
  value       = [for job in google_cloud_run_v2_job.job : job.id]
}

output "build_image" {
  description = "The command that builds the image, in the root of a checkout. Without model, it also brings the weights."
  value = join(" ", [
    "gcloud builds submit .",
    "--project=${var.project}",
    "--region=${var.region}",
    "--config=cloudbuild.yaml",
    "--service-account=projects/${var.project}/serviceAccounts/${google_service_account.account["build"].email}",
    "--gcs-source-staging-dir=gs://${google_storage_bucket.bucket["models"].name}/source",
    "--substitutions=\"${join(",", [
      "_IMAGE=${local.image}",
      "_TAG=latest",
      "_COMMIT=$(git rev-parse HEAD)",
      "_WEIGHTS=${var.model == "" ? "bucket" : "none"}",
      "_MODEL=${var.model == "" ? local.hub_model : ""}",
      "_MODEL_REVISION=main",
      "_BUCKET_MODELS=${google_storage_bucket.bucket["models"].name}",
    ])}\"",
  ])
}

output "find_image" {
  description = "The command that shows the value of image after a build."
  value       = "gcloud artifacts docker images describe ${local.image}:latest --format='value(image_summary.fully_qualified_digest)'"
}

output "find_model" {
  description = "The command that shows the value of model after a build."
  value       = "gcloud storage cat gs://${google_storage_bucket.bucket["models"].name}/${local.hub_model}/current"
}

output "try_job" {
  description = "The command that runs doctor on a GPU."
  value       = "gcloud run jobs execute voxbatch --project=${var.project} --region=${var.region} --wait"
}
