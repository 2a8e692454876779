//go:build !linux

package postgres

import (
	"errors"
	"net"
)

// setLowWater is not supported: it was not tested on other systems.
func setLowWater(net.Conn, int) error { return errors.ErrUnsupported }
