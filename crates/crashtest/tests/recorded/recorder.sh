#!/bin/sh
# A disk for the plugin `sh` of nbdkit that records its requests. Each write and each flush is a
# line of $RECORD/log; $RECORD/data has the bytes of the writes in order. One request at a time.
case "$1" in
thread_model) echo serialize_all_requests ;;
get_size) stat -c %s "$RECORD/image" ;;
can_write | can_flush) ;;
pread) dd if="$RECORD/image" iflag=skip_bytes,count_bytes skip="$4" count="$3" bs=64k status=none ;;
pwrite)
    tee -a "$RECORD/data" |
        dd of="$RECORD/image" iflag=fullblock oflag=seek_bytes seek="$4" bs=64k conv=notrunc status=none
    echo "write $4 $3" >>"$RECORD/log"
    ;;
flush) echo flush >>"$RECORD/log" ;;
*) exit 2 ;;
esac
