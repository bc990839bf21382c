mod desk;
mod wire;
