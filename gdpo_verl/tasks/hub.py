"""Rows of a data set on the Hugging Face hub, by the library `datasets`."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from gdpo_verl.tasks.source import Record, Source, split_of
from gdpo_verl.text import first_line


def open_hub(source: str, config: str | None) -> Source:
    """A data set of the hub, at the commit that its revision names now.

    With ``HF_HUB_OFFLINE=1`` it comes from the cache, if it is there.

    Args:
      source: a hub id, if need be with ``@`` and a revision.
      config: the configuration, for a data set that has one of this name.

    Raises:
      ConnectionError: the hub cannot be reached, or does not have it.
      ValueError: its files cannot be read, or it has several configurations.
    """
    import httpx
    from datasets import get_dataset_config_names, load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import HfApi, errors

    hub_id, _, revision = source.partition("@")
    commit: str | None = revision or None
    try:
        # Offline, what is in the cache will do, and only `load_dataset` can tell what that is.
        with suppress(errors.OfflineModeIsEnabled):
            commit = HfApi().dataset_info(hub_id, revision=commit).sha
            if config and config not in get_dataset_config_names(hub_id, revision=commit):
                config = None
        splits = load_dataset(hub_id, config, revision=commit)
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        raise ConnectionError(
            f"--from: the hub refuses {source!r}: {first_line(error)}. Is the id right? For a "
            "private or gated data set, log in with `hf auth login` and accept its terms."
        ) from error
    except (OSError, httpx.HTTPError) as error:
        raise ConnectionError(
            f"--from: cannot load {source!r} from the hub: {first_line(error)}. It is not a path "
            f"here either. Without a network: `hf download --repo-type dataset {hub_id} "
            "--local-dir DIR` where there is one, copy DIR here, and give --from DIR."
        ) from error
    except DatasetsError as error:
        raise ValueError(f"--from: cannot read {source!r}: {first_line(error)}") from error
    records = (
        Record(f"{hub_id}:{name}", row, split_of(Path(str(name))), values)
        for name, rows in splits.items()
        for row, values in enumerate(rows)
    )
    provenance = {"hub": hub_id, "revision": commit or _cached_commit(splits), "config": config}
    return Source(records, sum(len(rows) for rows in splits.values()), provenance)


def _cached_commit(splits: Any) -> str | None:
    """The commit that `datasets` names the folder of its cache after."""
    names = {
        Path(file["filename"]).parent.name for rows in splits.values() for file in rows.cache_files
    }
    return next((name for name in sorted(names) if re.fullmatch("[0-9a-f]{40}", name)), None)
