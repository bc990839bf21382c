mod desk;
#[doc(hidden)]
pub mod wire;
