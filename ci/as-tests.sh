# Sourced by the other scripts: the packages and features that the tests are built with. Cargo compiles a crate once for each set
# of features, so whatever can shall use this one.
as_tests=(--workspace --features durix-simtests/shuttle,durix/uuid,durix-cli/redb)
