//! From the configuration to the plan of the pipeline, and to the names of the metrics.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::config::{Config, RuleKind};
use crate::guard::Policy;
use crate::kinds::Memory;
use crate::metrics::ServerName;
use crate::proxy::{GuardPlan, ObserverSettings, Plan, RulePlan, StructurePlan};
use crate::rule::Rules;
use crate::upstream::pool::SharedPool;
use crate::upstream::server::Server;
use crate::upstream::{PoolSpec, ServerSpec};

/// The configuration in the form that the pipeline uses.
pub(crate) fn plan(config: &Config, pools: &[Arc<SharedPool>]) -> Plan {
    let tags_at = placement(&config.pools[config.tags.pool], &pools[config.tags.pool]);
    let tags_at = hash((tags_at, &config.tags.prefix, config.tags.replicas));
    let mut guards = Vec::new();
    let mut structures = Vec::new();
    let mut routes = Vec::new();
    for (index, rule) in config.rules.iter().enumerate() {
        let mut structure = None;
        let guard = match &rule.kind {
            RuleKind::Raw | RuleKind::Observed => None,
            RuleKind::Structure(kind) => {
                let prefix = rule.pattern.prefix().len();
                let (pool, kind) = (rule.pool, kind.clone());
                let memory = Memory::default();
                structures.push(StructurePlan { rule: index, pool, kind, prefix, memory });
                structure = Some(structures.len() - 1);
                None
            }
            RuleKind::Guarded { policy, tags, tags_in_key, meta_winner } => {
                let at = placement(&config.pools[rule.pool], &pools[rule.pool]);
                let plan = hash((at, format!("{tags:?}"), *tags_in_key, tags_at));
                let (policy, tags) = (Policy { plan, ..policy.clone() }, tags.clone());
                let (tags_in_key, meta_winner) = (*tags_in_key, *meta_winner);
                guards.push(GuardPlan {
                    rule: index,
                    pool: rule.pool,
                    policy,
                    tags,
                    tags_in_key,
                    meta_winner,
                });
                Some(guards.len() - 1)
            }
        };
        let (name, invalidates) = (rule.name.clone(), rule.invalidates.clone());
        let observed = match rule.kind {
            RuleKind::Observed => true,
            RuleKind::Raw => config.observe_all,
            RuleKind::Guarded { .. } => rule.share.is_some(),
            RuleKind::Structure(_) => false,
        };
        let (pool, share) = (rule.pool, rule.share);
        routes.push(RulePlan { name, pool, guard, share, structure, observed, invalidates });
    }
    let rules = Rules::new(config.rules.iter().map(|rule| rule.pattern.clone()).collect());
    let main_pool = config.pools.iter().position(|pool| pool.name == "main").unwrap_or(0);
    let tags = &config.tags;
    let prefix = tags.prefix.clone();
    Plan::new(rules, routes, guards, structures, main_pool, prefix, tags.pool, tags.replicas > 1)
        .observing_others(config.observe_all)
}

/// Stands for where the keys of a pool are stored. The number of a server is unique in the process.
fn placement(spec: &PoolSpec, pool: &SharedPool) -> u64 {
    let server = |(spec, server): (&ServerSpec, &Arc<Server>)| (server.number(), spec.weight);
    let servers: Vec<_> = spec.servers.iter().zip(pool.servers()).map(server).collect();
    hash((servers, &spec.scheme))
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// What is shown of requests.
pub(super) fn observed(config: &Config) -> ObserverSettings {
    ObserverSettings {
        rules: config.rules.iter().map(|rule| rule.name.as_str().into()).collect(),
        kinds: config.rules.iter().map(|rule| rule.kind.word()).collect(),
        pools: config.pools.iter().map(|pool| pool.name.as_str().into()).collect(),
        slow: config.log.slow,
        keys: config.log.keys,
    }
}

/// The names of the rules, as metrics show them.
pub(crate) fn rule_names(config: &Config) -> Vec<String> {
    config.rules.iter().map(|rule| rule.name.clone()).collect()
}

/// The names of the servers of all pools, as metrics show them.
pub(crate) fn server_names(config: &Config) -> Vec<ServerName> {
    let of_pool = |pool: &PoolSpec| -> Vec<ServerName> {
        let name = |server: &ServerSpec| ServerName { pool: pool.name.clone(), server: server.label() };
        pool.all_servers().map(name).collect()
    };
    config.pools.iter().flat_map(of_pool).collect()
}
