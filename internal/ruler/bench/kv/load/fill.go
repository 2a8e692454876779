package kvload

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// fillWindow is how many values are in flight at once.
const fillWindow = 256

// Fill stores values in a store, over one session.
func Fill(ctx context.Context, d Driver, values iter.Seq2[string, []byte]) error {
	c, err := d.Near().Open(ctx, 0, fillWindow)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // ends Poll
	if err = fill(c, values); stop() {
		err = errors.Join(err, c.Close())
	} else {
		err = errors.Join(err, context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("load values: %w", err)
	}
	return nil
}

func fill(c Client, values iter.Seq2[string, []byte]) error {
	ops, free := make([]Op, fillWindow), make([]int, fillWindow)
	for i := range free {
		free[i] = i
	}
	// leave waits until at most n operations are in flight.
	leave := func(n int) error {
		var failed error
		for fillWindow-len(free) > n {
			err := c.Poll(func(slot int, a Answer) {
				free = append(free, slot)
				failed = errors.Join(failed, a.Err)
			})
			if err = errors.Join(err, failed); err != nil {
				return err
			}
		}
		return nil
	}
	for key, value := range values {
		if err := leave(fillWindow - 1); err != nil {
			return err
		}
		i := free[len(free)-1]
		free = free[:len(free)-1]
		ops[i] = Op{Class: StrongWrite, Key: key, Value: append(ops[i].Value[:0], value...)}
		c.Issue(i, &ops[i])
	}
	return leave(0)
}
