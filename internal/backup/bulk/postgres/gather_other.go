//go:build !linux

package postgres

import (
	"errors"
	"net"
)

// setLowWater: the tests of other systems are missing.
func setLowWater(net.Conn, int) error { return errors.ErrUnsupported }
