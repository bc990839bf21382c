//! What the configuration means to the pipeline. All workers share one plan.

use crate::guard::Policy;
use crate::kinds::{Kind, Memory};
use crate::metrics::NO_RULE;
use crate::rule::{Rules, Share, Template};

/// The rules, and for each of them where its keys go and how they are guarded.
pub struct Plan {
    /// Finds the rule of a key.
    pub(super) rules: Rules,
    /// The plan of each rule, in the order of `rules`.
    pub(super) rule_plans: Vec<RulePlan>,
    /// The guards that `rule_plans` and `tag_guard` refer to.
    pub(super) guards: Vec<GuardPlan>,
    /// The structures that `rule_plans` refer to.
    pub(super) structures: Vec<StructurePlan>,
    /// Index of the pool `main`, which holds the keys that no rule matches.
    pub(super) main_pool: usize,
    /// Prefix of tag keys.
    pub(super) tag_prefix: Vec<u8>,
    /// Index of the pool that holds the tags.
    pub(super) tag_pool: usize,
    /// Whether each tag is stored on two servers.
    pub(super) tag_copies: bool,
    /// The guard under which tags are bumped. It belongs to no rule.
    pub(super) tag_guard: usize,
    /// Whether any rule bumps tags when its keys change.
    pub(super) invalidates: bool,
    /// Whether any rule allows tags in front of its keys.
    pub(super) tags_in_key: bool,
    /// Whether the keys of any rule are tables.
    pub(super) has_tables: bool,
    /// Whether any keys are observed.
    observes: bool,
    /// Whether the keys that no rule matches are observed.
    observes_others: bool,
}

/// What applies to the keys of one rule.
pub struct RulePlan {
    /// Name of the rule.
    pub name: String,
    /// Index of the pool that holds the keys.
    pub pool: usize,
    /// Index of the keys' guard in the plan; `None` for raw keys and structures.
    pub guard: Option<usize>,
    /// The share of the keys that are guarded; the others are raw. `None`: all.
    pub share: Option<Share>,
    /// Index of the keys' structure in the plan; `None` for raw and guarded keys.
    pub structure: Option<usize>,
    /// Whether what clients build for its keys is counted: raw ones, and guarded ones if only a share is guarded.
    pub observed: bool,
    /// Names of the tags that a change of such a key bumps.
    pub invalidates: Vec<Template>,
}

/// How the keys of one rule are guarded.
pub struct GuardPlan {
    /// Index of the rule in the metrics.
    pub rule: usize,
    /// Index of the pool that holds the keys.
    pub pool: usize,
    /// The rule's durations and choices.
    pub policy: Policy,
    /// Names of the tags that each key carries.
    pub tags: Vec<Template>,
    /// Whether classic clients may put further tags in front of the key of what they store.
    pub tags_in_key: bool,
    /// The reply to a winning `mg` without `N` and `R`.
    pub meta_winner: MetaWinner,
}

/// What the keys of one rule are, if they are structures.
pub struct StructurePlan {
    /// Index of the rule in the metrics.
    pub rule: usize,
    /// Index of the pool that holds the keys.
    pub pool: usize,
    /// The kind, with the settings of the rule.
    pub kind: Kind,
    /// The length of the text that every key of the rule begins with.
    pub prefix: usize,
    /// What the process remembers of them.
    pub memory: Memory,
}

/// The reply to an `mg` that has won the right to rebuild a value which may still be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaWinner {
    /// A miss, as for a classic client.
    Miss,
    /// The stale value, with `W`.
    Stale,
}

impl Plan {
    /// Builds the plan. `tag_pool` holds the tags, on two servers each if `tag_copies`.
    #[allow(clippy::too_many_arguments, reason = "one for each table and setting of the configuration")]
    pub fn new(
        rules: Rules,
        rule_plans: Vec<RulePlan>,
        mut guards: Vec<GuardPlan>,
        structures: Vec<StructurePlan>,
        main_pool: usize,
        tag_prefix: Vec<u8>,
        tag_pool: usize,
        tag_copies: bool,
    ) -> Plan {
        let tag_guard = guards.len();
        let has_tables = structures.iter().any(|structure| matches!(structure.kind, Kind::Table(_)));
        let tags_in_key = guards.iter().any(|guard| guard.tags_in_key);
        guards.push(GuardPlan {
            rule: NO_RULE,
            pool: tag_pool,
            policy: Policy::default(),
            tags: Vec::new(),
            tags_in_key: false,
            meta_winner: MetaWinner::Miss,
        });
        let observes = rule_plans.iter().any(|rule| rule.observed);
        let invalidates = rule_plans.iter().any(|rule: &RulePlan| !rule.invalidates.is_empty());
        Plan {
            rules,
            rule_plans,
            guards,
            structures,
            main_pool,
            tag_prefix,
            tag_pool,
            tag_copies,
            tag_guard,
            invalidates,
            tags_in_key,
            has_tables,
            observes,
            observes_others: false,
        }
    }

    /// The same, and whether the keys that no rule matches are observed.
    pub fn observing_others(self, observes_others: bool) -> Plan {
        Plan { observes: self.observes || observes_others, observes_others, ..self }
    }

    /// The policy of the guarded keys of this rule, if only a share of its keys is guarded.
    pub(super) fn policy_of_share(&self, rule: usize) -> Option<&Policy> {
        let RulePlan { share: Some(_), guard: Some(guard), .. } = self.rule_plans.get(rule)? else {
            return None;
        };
        Some(&self.guards[*guard].policy)
    }

    /// Whether what clients build for the keys of this rule is counted.
    #[inline]
    pub(super) fn observes(&self, rule: usize) -> bool {
        self.observes && self.rule_plans.get(rule).map_or(self.observes_others, |plan| plan.observed)
    }
}
