"""Cloud Run: an execution of an existing job, with other arguments and another number of tasks.

The client is google-cloud-run over REST: plain HTTPS, which passes proxies. It finds credentials as all of Google's
clients do. Project and region may also come from gcloud's variables, and so may another address of the API.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from voxbatch import prices
from voxbatch.clouds.submit.submission import GPU_START, ApiRequest, StartedRun, StartTime, Submission
from voxbatch.engines import uses_gpu
from voxbatch.errors import BusyError, ConfigError, StartError, VoxbatchError
from voxbatch.platforms import GOOGLE_PROJECT
from voxbatch.stores.http_errors import one_line

ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN"
"""gcloud's variable for another address of the Cloud Run API."""
REGIONS = ("CLOUDSDK_RUN_REGION", "CLOUDSDK_COMPUTE_REGION")
"""gcloud's variables for the region, in order of precedence."""
GPU_LIMIT_S = 3600
"""Time limit of a task with a GPU that jobs/cloudrun/deploy.sh sets without TASK_TIMEOUT. More is in preview."""
LONGEST_GPU_LIMIT_S = 12 * 3600
"""Longest time limit of a task with a GPU, in preview (Cloud Run's page about task timeouts, 2026-11)."""
LIMIT_S = 168 * 3600
"""Time limit of a task without a GPU: one week."""
STARTUP_S = 600
"""Seconds of the hour that are reserved for the longest start (submission.GPU_START), an uneven share, and the last
commit.
"""
TIMEOUT_S = 60.0
"""Timeout of one request, in seconds."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_JOB = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9][a-z0-9.:-]*")
_LOGIN = (
    "set GOOGLE_APPLICATION_CREDENTIALS to a key file, run gcloud auth application-default login, or give the machine "
    "a service account"
)
_PERMISSIONS = {
    "start": "run.jobs.run and run.jobs.runWithOverrides (role roles/run.jobsExecutorWithOverrides on the job)",
    "list the executions of": "run.jobs.list, run.executions.list, run.tasks.list and run.workerPools.list (role "
    "roles/run.viewer)",
    "look at": "run.jobs.get and run.executions.list (role roles/run.viewer; --again starts it without looking)",
}


@dataclass(frozen=True, slots=True)
class CloudRun:
    """A Cloud Run job as a Target. A setting that is None is read from the environment when it is needed."""

    job: str = "voxbatch"
    project: str | None = None
    region: str | None = None

    title: ClassVar[str] = "Cloud Run"
    max_tasks: ClassVar[int] = 10_000
    """The platform's own limit."""
    tasks_of_new_project: ClassVar[int | None] = 2
    """Tasks that run at a time with the quotas of a new project: 40 GiB and 20 vCPU, of which a task of
    jobs/cloudrun/deploy.sh takes 16 and 8. See docs/costs.md."""
    job_limit_s: ClassVar[int | None] = GPU_LIMIT_S
    """Time limit of a task for which `limit_s` is None, unless TASK_TIMEOUT set another."""
    task_hours: ClassVar[float] = (GPU_LIMIT_S - STARTUP_S) / 3600
    """Hours that a task should take by default."""

    def __post_init__(self) -> None:
        if not _JOB.fullmatch(self.job):
            raise ConfigError(f"--job {self.job!r}: a job's name has 1 to 63 small letters, digits and dashes")
        for name, value in (("--project", self.project), ("--region", self.region)):
            if value is not None and not _NAME.fullmatch(value):
                raise ConfigError(f"{name} {value!r}: write its id, in small letters, digits and dashes")

    def machine(self, engine: str) -> str:
        """Return the price table's entry of a machine with an L4 for vLLM, else of a CPU machine."""
        return prices.CLOUD_RUN_L4 if uses_gpu(engine) else prices.CLOUD_RUN_CPU

    def engine(self) -> str:
        """Return vllm, because the job has a GPU."""
        return "vllm"

    def gpus(self, engine: str) -> tuple[str, int] | None:
        """Return one L4 for vLLM: jobs/cloudrun/deploy.sh sets the job up so."""
        return ("NVIDIA L4", 1) if uses_gpu(engine) else None

    def start_time(self, engine: str) -> StartTime | None:
        """Return the modelled start of a task with an L4, or None for a task without a GPU."""
        return GPU_START if uses_gpu(engine) else None

    def limit_s(self, engine: str, task_hours: float, wall_s: float | None) -> int | None:
        """Return the seconds after which the platform ends a task that is expected to take `wall_s` seconds, if known.

        With a GPU it is None, the job's own limit, unless more than an hour for a task was asked for. Without a GPU it
        is three times the expected time.
        """
        if self.machine(engine) == prices.CLOUD_RUN_L4:
            return None if task_hours <= 1 else min(LONGEST_GPU_LIMIT_S, round(task_hours * 3600) + STARTUP_S)
        return round(min(LIMIT_S, max(GPU_LIMIT_S, 3 * max(task_hours * 3600, wall_s or 0))))

    def request(self, submission: Submission) -> ApiRequest:
        """Return the request; unknown parts of its address are the placeholders PROJECT and REGION."""
        project, region = self.project or os.environ.get(GOOGLE_PROJECT), self._region()
        unknown = {
            f"PROJECT: a start takes that of the credentials, unless --project or {GOOGLE_PROJECT} gives one": project,
            f"REGION: give --region, or set {REGIONS[0]}": region,
        }
        name = _job_name(project or "PROJECT", region or "REGION", self.job)
        where = f"POST {_endpoint() or 'https://run.googleapis.com'}/v2/{name}:run"
        return ApiRequest(where, _body(submission), tuple(text for text, value in unknown.items() if not value))

    def connect(self) -> CloudRunApi:
        """Return the API for this job.

        Raises:
            ConfigError: the project or the region is unknown.
            StartError: the client library or the credentials are missing.
        """
        return CloudRunApi(self)

    def _region(self) -> str | None:
        """Return the region, from the settings or the environment."""
        return self.region or next(filter(None, map(os.environ.get, REGIONS)), None)


def _endpoint() -> str:
    return os.environ.get(ENDPOINT, "").rstrip("/")


def _job_name(project: str, region: str, job: str) -> str:
    return f"projects/{project}/locations/{region}/jobs/{job}"


def _body(submission: Submission) -> dict[str, Any]:
    """Return the request's body: the arguments, variables, number of tasks and time limit of the execution."""
    container: dict[str, Any] = {"args": submission.arguments}
    if submission.environment:
        container["env"] = [{"name": name, "value": value} for name, value in submission.environment.items()]
    overrides: dict[str, Any] = {"containerOverrides": [container], "taskCount": submission.tasks}
    if submission.limit_s is not None:
        overrides["timeout"] = f"{submission.limit_s}s"
    return {"overrides": overrides}


class CloudRunApi:
    """The API for one project and one region."""

    def __init__(self, settings: CloudRun):
        self._settings, self._where = settings, f"the Cloud Run job {settings.job}"
        self.credentials: Any = None
        region = settings._region()
        if not region:
            raise ConfigError(f"which region {self._where} is in is not known: give --region, or set {REGIONS[0]}")
        self.region = region
        with self.errors("use"):
            import google.auth
            from google.cloud import run_v2

            self.credentials, default_project = google.auth.default(scopes=[_SCOPE])
            self.run_v2 = run_v2
        project = settings.project or os.environ.get(GOOGLE_PROJECT) or default_project
        if not project:
            raise ConfigError(
                f"which project {self._where} is in is not known: give --project, or set {GOOGLE_PROJECT}"
            )
        self.project = str(project)
        self._where += f" of project {self.project} in {region}"
        self._name = _job_name(self.project, region, settings.job)

    def start(self, submission: Submission, again: bool) -> StartedRun:
        """Start an execution, or return the latest running one that has the same arguments."""
        if not again and (execution := self.running(submission)):
            return execution
        from google.protobuf.json_format import ParseDict

        request = self.run_v2.RunJobRequest(name=self._name)
        ParseDict(_body(submission), self.run_v2.RunJobRequest.pb(request))
        with self.errors("start"), self.client(self.run_v2.JobsClient) as client:
            operation = client.run_job(request, timeout=TIMEOUT_S)
            return self._started(getattr(operation.metadata, "name", "") or operation.operation.name)

    def running(self, submission: Submission) -> StartedRun | None:
        """Return the latest running execution that has the same arguments; None if there is none.

        Raises:
            StartError: the executions cannot be listed.
        """
        with self.errors("look at"), self.client(self.run_v2.ExecutionsClient) as client:
            for execution in client.list_executions(parent=self._name, timeout=TIMEOUT_S):
                containers = execution.template.containers
                if not execution.completion_time and containers and list(containers[0].args) == submission.arguments:
                    return self._started(str(execution.name), was_running=True)
        return None

    def check_job_exists(self) -> None:
        """Check that the job exists.

        Raises:
            ConfigError: the job does not exist.
            StartError: the job cannot be looked at.
        """
        with self.errors("look at"), self.client(self.run_v2.JobsClient) as client:
            client.get_job(name=self._name, timeout=TIMEOUT_S)

    def client(self, kind: Any) -> Any:
        """Return a client of the library for one kind of resource. Use it as a context manager."""
        options = {"api_endpoint": endpoint} if (endpoint := _endpoint()) else None
        return kind(credentials=self.credentials, transport="rest", client_options=options)

    def _started(self, name: str, was_running: bool = False) -> StartedRun:
        short_name = name.rpartition("/")[2]
        page = f"https://console.cloud.google.com/run/jobs/executions/details/{self.region}/{short_name}/tasks"
        return StartedRun(short_name, f"{page}?project={self.project}", was_running)

    @contextlib.contextmanager
    def errors(self, verb: str) -> Iterator[None]:
        """Turn the client's errors into errors of voxbatch that say how to fix them. `verb` is one of _PERMISSIONS,
        or "use" for the login."""
        failure = f"cannot {verb} {self._where}"
        try:
            from google.api_core.exceptions import GoogleAPICallError, RetryError
            from google.auth.exceptions import GoogleAuthError, TransportError
            from google.cloud import run_v2  # noqa: F401 this package may be missing although the others are installed
            from google.protobuf.json_format import ParseError
            from requests.exceptions import RequestException
        except ImportError as e:
            install = "pip install 'voxbatch[cloudrun]'"
            raise StartError(f"{failure}: the client library is not installed ({e}): {install}") from e
        try:
            yield
        except GoogleAPICallError as e:
            raise self._api_error(failure, verb, e) from e
        except (RequestException, TransportError, RetryError) as e:
            raise BusyError(
                f"{failure}: the connection failed ({one_line(e)}): check the network, and try again: nothing is "
                "started twice"
            ) from e
        except ParseError as e:
            raise StartError(
                f"{failure}: what answers is not Cloud Run ({one_line(e)}): check {ENDPOINT} and proxies"
            ) from e
        except GoogleAuthError as e:
            reason = one_line(e.args[0] if e.args else e)
            if isinstance(e.__cause__, TransportError):  # for example, the machine's metadata server
                raise BusyError(f"{failure}: no credentials can be had now ({reason}): try again") from e
            raise StartError(f"{failure}: no usable credentials ({reason}): {_LOGIN}") from e

    def _api_error(self, failure: str, verb: str, error: Any) -> VoxbatchError:
        """Return the voxbatch error for an HTTP error of the API."""
        status, message = int(error.code or 0), error.message
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            # Prefer the message in the reply: the client's own message begins with a long address.
            message = str(json.loads(error.response.content)["error"]["message"]) or message
        message = one_line(message)
        place = f"project {self.project}, region {self.region}"
        if "SERVICE_DISABLED" in str(error) or "has not been used in project" in message:
            enable = f"gcloud services enable run.googleapis.com --project={self.project}"
            return ConfigError(f"{failure}: the Cloud Run API is not enabled there: {enable}")
        if status in (400, 403, 404) and re.search(r"\blocation\b", message, re.IGNORECASE):
            return ConfigError(f"{failure}: check --region {self.region}; Cloud Run says: {message}")
        if status == 401:
            return StartError(f"{failure}: the credentials are invalid or have expired: {_LOGIN}")
        if status == 403:
            account = getattr(self.credentials, "service_account_email", None) or "this account"
            return StartError(
                f"{failure}: permission denied: {account} lacks {_PERMISSIONS[verb]}; Cloud Run says: {message}"
            )
        if status == 404:
            make = f"gcloud run jobs create {self._settings.job} --image=IMAGE --project={self.project}"
            return ConfigError(
                f"{failure}: there is no job {self._settings.job} ({place}): check its name, --project and "
                f"--region, or make it: {make} --region={self.region}"
            )
        if status == 400:
            return ConfigError(f"{failure}: Cloud Run refuses the request: {message}")
        if status in (409, 429) or status >= 500:
            return BusyError(f"{failure}: Cloud Run is busy, or a quota is used up ({status}: {message}): try again")
        return StartError(f"{failure}: Cloud Run answers with status {status} ({message})")
