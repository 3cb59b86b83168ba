output "job" {
  description = "The job that transcribes."
  value       = google_cloud_run_v2_job.gpu["voxbatch"].id
}

output "out" {
  description = "The folder of the outputs."
  value       = local.out
}

output "accounts" {
  description = "The service accounts, by what they do."
  value       = { for key, account in google_service_account.account : key => account.email }
}
