//! The slab classes of the servers, from their replies to `stats slabs` and `stats items`.

use std::collections::BTreeMap;

/// The most classes of a server that are shown. memcached has at most 63.
const MAX_CLASSES: usize = 64;

/// What the servers have replied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slabs {
    /// When they were asked, in milliseconds of Unix time.
    pub at_ms: u64,
    /// Each server that was asked, in the order of the configuration.
    pub servers: Vec<ServerSlabs>,
    /// How many further servers were not asked.
    pub omitted: usize,
}

/// The slab classes of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSlabs {
    /// The name of its pool.
    pub pool: String,
    /// Its name or address.
    pub server: String,
    /// The classes that have pages or have evicted something, or why they are not known. An embedded server has none.
    pub classes: Result<Vec<SlabClass>, String>,
}

/// A slab class: memory for items of up to one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlabClass {
    /// Number of the slab class, as in `stats slabs`.
    pub class: u32,
    /// The size of a chunk, which holds one item, in bytes.
    pub chunk_size: u64,
    /// The chunks in a page.
    pub chunks_per_page: u64,
    /// The pages that it has.
    pub total_pages: u64,
    /// The chunks in them.
    pub total_chunks: u64,
    /// Those that hold an item.
    pub used_chunks: u64,
    /// Items that it has evicted, since the server's start.
    pub evicted: u64,
    /// For how many seconds the item evicted last had not been used.
    pub evicted_time: u64,
}

/// The classes in the replies to `stats slabs` and `stats items`, by their numbers. Lines that are neither are ignored.
pub fn slab_classes(slabs: &[u8], items: &[u8]) -> Vec<SlabClass> {
    let mut classes: BTreeMap<u32, SlabClass> = BTreeMap::new();
    for (class, field, value) in lines(slabs, "").chain(lines(items, "items:")) {
        if classes.len() == MAX_CLASSES && !classes.contains_key(&class) {
            continue;
        }
        let known = classes.entry(class).or_insert(SlabClass { class, ..SlabClass::default() });
        let place = match field {
            "chunk_size" => &mut known.chunk_size,
            "chunks_per_page" => &mut known.chunks_per_page,
            "total_pages" => &mut known.total_pages,
            "total_chunks" => &mut known.total_chunks,
            "used_chunks" => &mut known.used_chunks,
            "evicted" => &mut known.evicted,
            "evicted_time" => &mut known.evicted_time,
            _ => continue,
        };
        *place = value;
    }
    classes.into_values().filter(|class| class.total_pages > 0 || class.evicted > 0).collect()
}

/// The lines `STAT <prefix>CLASS:FIELD NUMBER` of a reply.
fn lines<'a>(reply: &'a [u8], prefix: &'a str) -> impl Iterator<Item = (u32, &'a str, u64)> {
    reply.split(|&byte| byte == b'\n').filter_map(move |line| {
        let line = std::str::from_utf8(line).ok()?.trim_end().strip_prefix("STAT ")?.strip_prefix(prefix)?;
        let (class, rest) = line.split_once(':')?;
        let (field, value) = rest.split_once(' ')?;
        Some((class.parse().ok()?, field, value.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_what_both_replies_say_of_it() {
        // Of memcached 1.6.
        let slabs = "STAT 1:chunk_size 96\r\nSTAT 1:chunks_per_page 10922\r\nSTAT 1:total_pages 1\r\n\
                     STAT 1:total_chunks 10922\r\nSTAT 1:used_chunks 7\r\nSTAT 1:free_chunks 10915\r\n\
                     STAT 1:get_hits 5\r\nSTAT 2:chunk_size 120\r\nSTAT 2:total_pages 0\r\n\
                     STAT active_slabs 1\r\nSTAT total_malloced 1048576\r\nEND\r\n";
        let items = "STAT items:1:number 7\r\nSTAT items:1:evicted 3\r\nSTAT items:1:evicted_time 40\r\n\
                     STAT items:2:evicted 0\r\nSTAT items:12:evicted 9\r\nEND\r\n";
        let first = SlabClass {
            class: 1,
            chunk_size: 96,
            chunks_per_page: 10_922,
            total_pages: 1,
            total_chunks: 10_922,
            used_chunks: 7,
            evicted: 3,
            evicted_time: 40,
        };
        let evicted = SlabClass { class: 12, evicted: 9, ..SlabClass::default() };
        assert_eq!(slab_classes(slabs.as_bytes(), items.as_bytes()), [first, evicted]);
    }

    #[test]
    fn garbage_has_no_classes_and_their_number_is_bounded() {
        for garbage in
            ["", "END\r\n", "ERROR\r\n", "STAT x:total_pages 1\r\nSTAT 1:total_pages -1\r\nSTAT 1:\r\n"]
        {
            assert_eq!(slab_classes(garbage.as_bytes(), b"\xff\r\n"), []);
        }
        let many: String = (0..1000).map(|n| format!("STAT {n}:total_pages 1\r\n")).collect();
        assert_eq!(slab_classes(many.as_bytes(), b"").len(), MAX_CLASSES);
    }
}
