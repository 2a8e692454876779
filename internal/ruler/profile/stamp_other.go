//go:build !linux

package profile

import "net"

// stampReader does not exist here: no portable way tells when data arrived.
type stampReader struct{}

func newStampReader(net.Conn) *stampReader { return nil }

func (*stampReader) read([]byte) (n int, at int64, err error) { return 0, 0, nil }
