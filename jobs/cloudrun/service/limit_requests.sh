#!/usr/bin/env bash
# Limit the requests of each address to voxbatch-serve by Cloud Armor, behind a load balancer. It never ran in a cloud.
set -euo pipefail

usage() {
    cat <<'END'
usage: HOST=speech.example.org [NAME=VALUE …] jobs/cloudrun/service/limit_requests.sh

Makes a load balancer with a certificate and a policy of Cloud Armor, in the project of gcloud, and prints the address
for the A record of HOST. Only /v1/ passes. Callers still need the role. To remove it, `gcloud compute … delete` what
the commands below make, in the opposite order.

  HOST         host name of the service
  REGION       region of the service                    europe-west1
  PER_MINUTE   requests a minute that an address has    60
END
}

if [[ $# -gt 0 || -z "${HOST:-}" ]]; then
    usage
    [[ "${1:-}" == --help ]] && exit 0
    exit 2
fi
SERVICE=voxbatch-serve
REGION="${REGION:-europe-west1}"
PER_MINUTE="${PER_MINUTE:-60}"

gcloud services enable compute.googleapis.com
gcloud compute addresses create "$SERVICE" --global
gcloud compute network-endpoint-groups create "$SERVICE" --region="$REGION" --network-endpoint-type=serverless \
    --cloud-run-service="$SERVICE"
gcloud compute backend-services create "$SERVICE" --global --load-balancing-scheme=EXTERNAL_MANAGED
gcloud compute backend-services add-backend "$SERVICE" --global --network-endpoint-group="$SERVICE" \
    --network-endpoint-group-region="$REGION"
gcloud compute url-maps create "$SERVICE" --default-service="$SERVICE"
gcloud compute ssl-certificates create "$SERVICE" --domains="$HOST"
gcloud compute target-https-proxies create "$SERVICE" --url-map="$SERVICE" --ssl-certificates="$SERVICE"
gcloud compute forwarding-rules create "$SERVICE" --global --load-balancing-scheme=EXTERNAL_MANAGED \
    --address="$SERVICE" --target-https-proxy="$SERVICE" --ports=443
gcloud compute security-policies create "$SERVICE" --description="$PER_MINUTE requests a minute for each address"
gcloud compute security-policies rules create 100 --security-policy="$SERVICE" --action=deny-404 \
    --expression="!request.path.startsWith('/v1/')"
gcloud compute security-policies rules create 200 --security-policy="$SERVICE" --action=throttle --src-ip-ranges="*" \
    --rate-limit-threshold-count="$PER_MINUTE" --rate-limit-threshold-interval-sec=60 --conform-action=allow \
    --exceed-action=deny-429 --enforce-on-key=IP
gcloud compute backend-services update "$SERVICE" --global --security-policy="$SERVICE"
echo "the A record of $HOST is:"
gcloud compute addresses describe "$SERVICE" --global --format='value(address)'
echo "so that nobody goes around the load balancer:"
echo "  INGRESS=internal-and-cloud-load-balancing jobs/cloudrun/service/deploy.sh"
