package archive

import (
	"context"
	"errors"
)

func openS3(_ context.Context, _ string, _ func(string) string) (Storage, error) {
	return nil, errors.ErrUnsupported
}
