//go:build !linux

package proxybench

import (
	"errors"
	"io"
)

func copyBytes(string, bool, io.Writer) error {
	return errors.New("copy bytes: the copier is written for Linux's epoll")
}
