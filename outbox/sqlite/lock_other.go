//go:build !unix

package sqlite

import "errors"

// fileLock needs a lock that ends with the process.
type fileLock struct{}

func lockFile(string) (*fileLock, error) {
	return nil, errors.New("leading an outbox in SQLite needs the file locks of a Unix system")
}

func (l *fileLock) check() error { return nil }

// Close does nothing.
func (l *fileLock) Close() error { return nil }
