# A budget tells people; it stops nothing. What stops a run is max_tasks, max_usd and max_usd_per_day.

resource "google_project_service" "budgets" {
  count = var.budget_usd > 0 ? 1 : 0

  project            = var.project
  service            = "billingbudgets.googleapis.com"
  disable_on_destroy = false
}

resource "google_billing_budget" "month" {
  count = var.budget_usd > 0 ? 1 : 0

  billing_account = var.billing_account
  display_name    = "voxbatch in ${var.project}"

  budget_filter {
    projects = ["projects/${var.project}"]
  }
  amount {
    specified_amount {
      units = tostring(var.budget_usd)
    }
  }
  dynamic "threshold_rules" {
    for_each = [0.5, 0.9, 1]
    content {
      threshold_percent = threshold_rules.value
    }
  }
  all_updates_rule {
    monitoring_notification_channels = var.channel == "" ? [] : [var.channel]
    disable_default_iam_recipients   = false # the administrators of billing are told, too
  }

  depends_on = [google_project_service.budgets]

  lifecycle {
    precondition {
      condition     = var.billing_account != ""
      error_message = "a budget needs billing_account, such as 012345-6789AB-CDEF01."
    }
  }
}
