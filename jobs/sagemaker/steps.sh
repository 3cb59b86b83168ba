# The steps that the deploy.sh of the pipeline and the deploy.sh of the endpoint share. Source this file after common.sh.
# shellcheck shell=bash disable=SC2154

repository() {
    if found RepositoryNotFoundException ecr describe-repositories --repository-names "$NAME"; then
        say kept "repository $NAME"
    else
        call ecr create-repository --repository-name "$NAME" --image-scanning-configuration '{"scanOnPush": true}' >/dev/null
        say made "repository $NAME"
    fi
}

bucket() {
    local where=()
    [[ $REGION == us-east-1 ]] || where=(--create-bucket-configuration "{\"LocationConstraint\": \"$REGION\"}")
    if found '404|NoSuchBucket|NotFound' s3api head-bucket --bucket "$1"; then
        say kept "bucket $1"
    else
        call s3api create-bucket --bucket "$1" ${where[@]+"${where[@]}"} >/dev/null
        say made "bucket $1"
    fi
    protection "$1"
}

protection() { # no public access, no connection without TLS, and KMS_KEY if it is given; other statements of a policy stay
    local block has new
    block=$(canonical <<<'{"BlockPublicAcls": true, "IgnorePublicAcls": true, "BlockPublicPolicy": true, "RestrictPublicBuckets": true}')
    if found NoSuchPublicAccessBlockConfiguration s3api get-public-access-block --bucket "$1" \
        --query PublicAccessBlockConfiguration && [[ $(canonical <<<"$answer") == "$block" ]]; then
        say kept "public access block of bucket $1"
    else
        call s3api put-public-access-block --bucket "$1" --public-access-block-configuration "$block"
        say changed "public access block of bucket $1"
    fi
    has={}
    if found NoSuchBucketPolicy s3api get-bucket-policy --bucket "$1" --query Policy; then has=$(canonical <<<"$answer"); fi
    new=$(BUCKET=$1 python3 "$here/render.py" "$here/policies/bucket.json" into - <<<"$has")
    if [[ $new == "$has" ]]; then
        say kept "policy of bucket $1"
    else
        call s3api put-bucket-policy --bucket "$1" --policy "$new"
        say changed "policy of bucket $1: only with TLS"
    fi
    [[ -n $KMS_KEY ]] || return 0
    if found ServerSideEncryptionConfigurationNotFoundError s3api get-bucket-encryption --bucket "$1" --query \
        'ServerSideEncryptionConfiguration.Rules[0].[ApplyServerSideEncryptionByDefault.KMSMasterKeyID, BucketKeyEnabled]' &&
        [[ $(canonical <<<"$answer") == "[\"$KMS_KEY\",true]" ]]; then
        say kept "key of bucket $1"
    else
        new="{\"ApplyServerSideEncryptionByDefault\": {\"SSEAlgorithm\": \"aws:kms\", \"KMSMasterKeyID\": \"$KMS_KEY\"}, \"BucketKeyEnabled\": true}"
        call s3api put-bucket-encryption --bucket "$1" --server-side-encryption-configuration "{\"Rules\": [$new]}"
        say changed "key of bucket $1: for objects that are written from now on"
    fi
}

IMAGE=-
image() { # set IMAGE to the image's address by digest, so that a push alone changes no run
    local id="[{\"imageTag\": \"$IMAGE_TAG\"}]" tagged=$REPOSITORY:$IMAGE_TAG digest form
    [[ $IMAGE_TAG != sha256:* ]] || id="[{\"imageDigest\": \"$IMAGE_TAG\"}]" tagged=$REPOSITORY@$IMAGE_TAG
    if ! found ImageNotFoundException ecr describe-images --repository-name "$NAME" --image-ids "$id" \
        --query 'imageDetails[0].[imageDigest, imageManifestMediaType]' --output text; then
        say absent "image $tagged. Push it, from the folder of the Dockerfile, and run deploy.sh again:"
        printf '         %s\n' \
            "aws ecr get-login-password --region $REGION | docker login --username AWS --password-stdin ${REPOSITORY%%/*}" \
            "docker build --platform linux/amd64 --provenance=false -t $tagged . && docker push $tagged"
        stop "there is no image yet"
    fi
    read -r digest form <<<"$answer"
    IMAGE=$REPOSITORY@$digest
    say kept "image $IMAGE"
    [[ $form != *index* && $form != *list* ]] ||
        say warning "the image is a list of images ($form), which parts of SageMaker refuse: build with --provenance=false"
}
