// Package cli has what the verbs of weir share: options and the loader that reads them from
// flags, environment and file, the usage text, exit codes, logs, and the formats of values. It
// knows no product. A verb converts flags to the configuration of its product's package and
// runs that; verbs are in the folder cmd of their product, and cmd/weir assembles them.
package cli
