//! One property per input format, each a function of bytes that panics if it does not hold.
//!
//! Nothing here depends on a fuzzer: `tests/it` compiles this directory too.

pub mod envelope;
pub mod packets;
pub mod replies;
pub mod requests;

/// An input of [`requests`], [`packets`] or [`replies`]: parameters, followed by the stream.
struct Input<'a> {
    /// Parameters of the case.
    parameters: u8,
    /// They determine the lengths of the reads, repeatedly.
    pieces: [u8; 3],
    stream: &'a [u8],
}

impl<'a> Input<'a> {
    fn read(data: &'a [u8]) -> Option<Self> {
        let (&[parameters, a, b, c], stream) = data.split_first_chunk()?;
        Some(Input { parameters, pieces: [a, b, c], stream })
    }

    /// The ways to cut the stream, each as the ends of its reads: as a whole, in the input's pieces and, where that is cheap,
    /// byte by byte.
    fn cuts(&self) -> Vec<Vec<usize>> {
        const CHEAP: usize = 200;
        let whole = self.stream.len();
        let mut ends = Vec::new();
        let mut end = 0;
        for piece in self.pieces.iter().cycle() {
            end += length(*piece);
            if end >= whole {
                break;
            }
            ends.push(end);
        }
        ends.push(whole);
        let mut cuts = vec![vec![whole], ends];
        if whole <= CHEAP {
            cuts.push((1..=whole).collect());
        }
        cuts
    }
}

/// The length of a read: fine-grained if short, up to 4 KiB.
fn length(piece: u8) -> usize {
    1 + usize::from(piece) * usize::from(piece) / 16
}
