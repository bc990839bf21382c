//! Limits that follow from the configuration and the machine.

use std::thread;

use tracing::warn;

use super::errors::StartError;
use crate::config::Config;
use crate::open_files::Budget;

/// The most workers with `workers = 0`, which otherwise means one per core. The machine is mainly for the application.
const MAX_AUTOMATIC_WORKERS: usize = 4;
/// Miss tokens may use 1/8 of `max_buffered`.
const MISS_TOKENS_SHARE: usize = 8;

/// The most clients at a time, as far as the limit on open files allows.
pub(super) fn max_connections(
    config: &Config,
    workers: usize,
    open_files: Option<u64>,
) -> Result<usize, StartError> {
    let budget = Budget::new(open_files, config, workers);
    let max_connections = budget.clients().map_err(StartError::OpenFiles)?;
    if let Some(warning) = budget.warning() {
        warn!("{warning}");
    }
    Ok(max_connections)
}

/// The part of `max_buffered` that miss tokens may use, in bytes.
pub(super) fn miss_token_bytes(config: &Config) -> usize {
    config.listen.max_buffered / MISS_TOKENS_SHARE
}

/// The number of workers of a configuration on this machine.
pub(crate) fn workers(config: &Config) -> usize {
    workers_of(config.listen.workers, thread::available_parallelism().map_or(1, usize::from))
}

/// The number of workers for a value of `listen.workers`.
fn workers_of(configured: usize, cores: usize) -> usize {
    match configured {
        0 => cores.min(MAX_AUTOMATIC_WORKERS),
        workers => workers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_cores_get_no_more_workers_unless_the_configuration_says_so() {
        let automatic =
            [1, MAX_AUTOMATIC_WORKERS, MAX_AUTOMATIC_WORKERS + 1, 96].map(|cores| workers_of(0, cores));
        assert_eq!(automatic, [1, MAX_AUTOMATIC_WORKERS, MAX_AUTOMATIC_WORKERS, MAX_AUTOMATIC_WORKERS]);
        assert_eq!([1, 96].map(|cores| workers_of(8, cores)), [8, 8]);
    }
}
