//go:build !linux

package backupcmd

import (
	"context"
	"errors"

	"github.com/weirdb/weir/internal/backup/archive"
)

// privateServer returns an error: the lab, which starts servers, supports only Linux.
func (v *verifyVerb) privateServer(context.Context, *archive.Manifest) (dsn string, stop func() error, err error) {
	return "", nil, errors.New("weir backup verify --restore starts servers on Linux only: restore into a server of yours with weir restore --to DSN --create --verify")
}
