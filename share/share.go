// Package share lends blocks of an allocator's memory to other processes.
//
// The owner has a connection to the borrower, a Unix stream socket, and lends
// blocks on it with a Lender. The borrower takes them from the other end with
// a Borrower, and sees the same memory at addresses of its own:
//
//	owner                                borrower
//	loan, err := lender.Lend(block)      m, err := borrower.Receive()
//	                                     … work on m.Ptr(), Sync …
//	err = loan.Wait(ctx)                 err = m.Close()
//	block.Free()
//
// A connection carries loans in one direction. Any number of blocks can be
// lent on it at once, and come back in any order. Both devices must be a
// device.Sharer of the same granularity: of the host (device.OpenSharedHost), or
// the same GPU (device.OpenSharedCUDA).
//
// # Order of work
//
// Nothing orders the streams of two processes, on the host or on a GPU. Before Lend the owner must have
// finished the work that fills the block (Stream.Sync); before Mapping.Close
// the borrower must have finished all work on it. While a block is lent the two
// processes use it as threads use memory in common.
//
// # When a loan ends
//
// The owner counts nothing: it has a set of loans, and a loan ends when it is
// taken out of the set, which happens once. That is when the borrower gives the
// block back, or when the connection ends at the borrower's side, which a
// crash does too: the system takes away the mappings of a process before its
// sockets. On a GPU that is not certain: work that a crashed process had queued
// may run until the driver has cleared up after it, a moment after the loan
// ended. What is given back twice has ended already. The block must not be
// freed before the loan ended.
//
// # Trust
//
// Each side checks all that it reads before it acts on it, so that a faulty
// peer makes errors but no harm: no crash, no large allocation, no open file
// left behind. There is no more to be had than that. The files that the owner
// passes stand for more than the block: for all memory of a host device, and on
// a GPU for all of the block's granules, other blocks' parts among them. The
// owner cannot see whether a borrower that gave a block back has kept them.
// So lend to programs that may write all of the device's memory.
//
// # The messages
//
// Numbers are little endian, and there is no byte without a meaning. Both
// kinds of message begin with
//
//	 0  8  "headroom"
//	 8  4  version of the protocol, 1
//	12  4  kind: 1 lends a block, 2 gives one back
//	16  8  number of the loan, counted from 1 on each connection
//
// and that is all of the second kind. A message that lends goes on with
//
//	24  8  granularity of the device in bytes
//	32  8  offset of the block in its first granule
//	40  8  size of the block in bytes
//	48  4  number of files
//	52  4  number of extents
//	56     the extents, in the order of the block's addresses
//
// where an extent is a run of granules that lie side by side in a file:
//
//	0  4  number of the file
//	4  4  number of granules
//	8  8  offset of the first granule in the file
//
// The files travel beside these bytes in the order of their numbers, as
// SCM_RIGHTS control messages. That needs no rights over the other process, as
// opening its files by its id (pidfd_getfd) would, so it works between containers
// that have the socket in common.
//
// # GPUs
//
// A shared host device has one file for all its handles, and a GPU
// (device.OpenSharedCUDA) gives one for each, with offset 0. These are device
// files, which have one inode in common: only regular files are taken for equal
// by their inode. A block may lie in 1024 files, for lack of open ones, which is
// 2 GiB of a GPU's memory. Both processes must see the GPU. Its memory lives
// until both have let it go.
package share

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/headroom-go/headroom/device"
)

// ErrProtocol is returned (wrapped, with what was wrong) when the peer sends
// what this version does not understand. Nothing more is lent or received on the
// connection; what was lent before stays lent until it is given back or the
// connection ends.
var ErrProtocol = errors.New("not understood")

// sharer gives the part of a device that shares memory, if it can be used on c.
func sharer(c *net.UnixConn, dev device.Device) (device.Sharer, error) {
	s, ok := dev.(device.Sharer)
	if !ok || !filesPass {
		return nil, fmt.Errorf("device %s cannot share its memory: open it as host:SIZE,shared or cuda:N,SIZE,shared, on Linux: %w",
			dev.Info().Name, errors.ErrUnsupported)
	}
	if network := c.LocalAddr().Network(); network != "unix" {
		return nil, fmt.Errorf("share over a socket of kind %s: only stream sockets (unix) will do", network)
	}
	return s, nil
}

// isGone says whether an error of the connection means that the other side has
// closed it.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
