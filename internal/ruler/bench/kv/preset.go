package kvbench

import "github.com/weirdb/weir/internal/kvd/consensus"

// CheckPreset returns why there is no such preset of the protocol.
func CheckPreset(name string) error {
	_, err := consensus.Preset(name)
	return err
}
