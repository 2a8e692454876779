//go:build !linux

package backupcmd

import (
	"context"
	"errors"

	"github.com/weirdb/weir/internal/backup/archive"
)

// privateServer says that there is none: the lab, which starts them, is Linux's.
func (v *verifyVerb) privateServer(context.Context, *archive.Manifest) (dsn string, stop func() error, err error) {
	return "", nil, errors.New("weir backup verify --restore starts servers on Linux only: restore into a server of yours with weir restore --to DSN --create --verify")
}
